"""The command line: ``eande reproduce …``."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

app = typer.Typer(help="Embed & Emulate: posteriors from simulations.", no_args_is_help=True, add_completion=False)
reproduce = typer.Typer(help="Reproduce a table or figure of the paper.", no_args_is_help=True)
app.add_typer(reproduce, name="reproduce")


class Size(StrEnum):
    """How large a study is."""

    paper = "paper"
    quick = "quick"
    toy = "toy"


@app.callback()
def main() -> None:
    """Embed & Emulate: posteriors from simulations."""


@reproduce.command()
def synthetic(
    size: Annotated[Size, typer.Option(help="paper: the published figures; quick: minutes; toy: seconds, for tests.")] = Size.paper,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds per task.")] = 5,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    processes: Annotated[int, typer.Option(min=1, help="Runs at a time, one thread each.")] = 2,
    output: Annotated[Path, typer.Option(help="Folder for synthetic.json and the figures.")] = Path("results"),
) -> None:
    """Fit the four synthetic tasks and compare every posterior with the exact one (the paper's Table 1 and Figure 3)."""
    from eande.experiments import synthetic as study

    console = Console()
    bar = Progress(SpinnerColumn(), TextColumn("fitting"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console)
    task = bar.add_task("runs", total=seeds * len(study.PAPER_L1))

    def report(run: dict[str, Any]) -> None:
        bar.advance(task)
        console.print(
            f"κ = {run['kappa']}, {_task(run)}, seed {run['seed']}: L1 {run['l1_median']:.4f}, "
            f"held-out {run['held_out_log_ratio']:.3f} of {run['information']:.3f} nats, {run['seconds']:.0f} s"
        )

    with bar:
        results = study.run_study(size.value, range(first_seed, first_seed + seeds), output, processes=processes, report=report)
    console.print(_synthetic_table(study.summarize(results)))
    for path in _synthetic_figures(results, study.PAPER_L1, output):
        console.print(f"wrote {path}")
    console.print(f"wrote {output / 'synthetic.json'}")


def _task(row: dict[str, Any]) -> str:
    return "multimodal" if row["redundant"] else "unimodal"


def _synthetic_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="L1 distance to the exact posterior: median, range over seeds", box=SIMPLE)
    for column in ("task", "κ", "paper", "ours", "seeds", "R²", "CV(C)", "∂g/∂φ_R"):
        table.add_column(column, justify="left" if column == "task" else "right", no_wrap=True)
    for row in rows:
        medians, redundant = row["l1_median_of_each_seed"], row["largest_redundant_sensitivity"]
        table.add_row(
            _task(row), str(row["kappa"]), f"{row['paper_l1']:.3f}", f"{row['l1_median']:.4f}", f"{min(medians):.3f}–{max(medians):.3f}",
            f"{row['smallest_r2']:.4f}", f"{row['largest_cv_normalizer']:.3f}", "–" if redundant is None else f"{redundant:.1%}",
        )  # fmt: skip
    trapped, runs = sum(row["trapped"] for row in rows), sum(row["runs"] for row in rows)
    table.caption = f"R², CV(C) and the derivative to the redundant parameter: worst seed. Trapped: {trapped} of {runs} runs."
    return table


def _synthetic_figures(results: list[dict[str, Any]], paper: dict[tuple[int, bool], float], output: Path) -> list[Path]:
    from eande import plots

    def name(kappa: int, redundant: bool) -> str:
        return f"{'multimodal' if redundant else 'unimodal'}, κ = {kappa}"

    distances = {name(*key): [x for run in results if (run["kappa"], run["redundant"]) == key for x in run["l1"]] for key in paper}
    figures = {"synthetic-l1.png": plots.distance_boxes(distances, {name(*key): value for key, value in paper.items()}, label="L1 distance")}
    seen: set[int] = set()
    for run in sorted(results, key=lambda one: one["seed"]):
        if run["redundant"] and run["kappa"] not in seen:
            seen.add(run["kappa"])
            ours, exact = run["picture"]
            title = f"One posterior, {name(run['kappa'], True)}"
            figures[f"synthetic-posterior-kappa{run['kappa']}.png"] = plots.posterior_pairs(ours, exact, ["φ_R", "φ₁", "φ₂"], title=title)
    for file, figure in figures.items():
        figure.savefig(output / file, dpi=130)
    return [output / file for file in figures]


if __name__ == "__main__":
    app()
