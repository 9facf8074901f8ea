"""The command line: ``eande reproduce …``."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

app = typer.Typer(
    help="Embed & Emulate: posteriors from simulations.", no_args_is_help=True, add_completion=False
)
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
    size: Annotated[
        Size,
        typer.Option(help="paper: the published figures; quick: minutes; toy: seconds, for tests."),
    ] = Size.paper,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds per task.")] = 5,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    processes: Annotated[int, typer.Option(min=1, help="Runs at a time, one thread each.")] = 2,
    output: Annotated[
        Path, typer.Option(file_okay=False, help="Folder for synthetic.json and the figures.")
    ] = Path("results"),
) -> None:
    """Fit the four synthetic tasks and compare every posterior with the exact one (the paper's Table 1 and Figure 3)."""
    from eande.foundations.checks import InputError
    from eande.studies import synthetic as study

    console = Console()
    bar = Progress(
        SpinnerColumn(),
        TextColumn("fitting"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    task = bar.add_task("runs", total=seeds * len(study.PAPER_L1))

    def report(run: dict[str, Any]) -> None:
        bar.advance(task)
        console.print(
            f"κ = {run['kappa']}, {_task(run)}, seed {run['seed']}: L1 {run['l1_median']:.4f}, "
            f"held-out {run['held_out_log_ratio']:.3f} of {run['information']:.3f} nats, {run['seconds']:.0f} s"
        )

    try:
        # Before hours of work, not after.
        import eande.plots.style as _style  # noqa: F401

        with bar:
            results = study.run_study(
                size.value,
                range(first_seed, first_seed + seeds),
                output,
                processes=processes,
                report=report,
            )
    except (InputError, ImportError) as error:
        raise typer.BadParameter(str(error)) from None
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


def _synthetic_figures(
    results: list[dict[str, Any]], paper: dict[tuple[int, bool], float], output: Path
) -> list[Path]:
    from eande import plots

    def name(kappa: int, redundant: bool) -> str:
        return f"{'multimodal' if redundant else 'unimodal'}, κ = {kappa}"

    distances = {
        name(*key): [
            x for run in results if (run["kappa"], run["redundant"]) == key for x in run["l1"]
        ]
        for key in paper
    }
    figures = {
        "synthetic-l1.png": plots.distance_boxes(
            distances, {name(*key): value for key, value in paper.items()}, label="L1 distance"
        )
    }
    seen: set[int] = set()
    for run in sorted(results, key=lambda one: one["seed"]):
        if run["redundant"] and run["kappa"] not in seen and "picture" in run:
            seen.add(run["kappa"])
            ours, exact = run["picture"]
            title = f"One posterior, {name(run['kappa'], True)}"
            figures[f"synthetic-posterior-kappa{run['kappa']}.png"] = plots.posterior_pairs(
                ours, exact, ["φ_R", "φ₁", "φ₂"], title=title
            )
    for file, figure in figures.items():
        figure.savefig(output / file, dpi=130)
    return [output / file for file in figures]


@reproduce.command()
def sbibm(
    size: Annotated[
        Size,
        typer.Option(
            help="paper: every cell, hours on two cores; quick: 10,000 simulations, few observations; toy."
        ),
    ] = Size.paper,
    task: Annotated[
        list[str] | None, typer.Option(help="Which of the five; all by default.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of simulations and networks.")] = 0,
    wheel: Annotated[
        Path | None,
        typer.Option(
            help="sbibm-1.1.0-py2.py3-none-any.whl; by default pip downloads it. Nothing of it is run."
        ),
    ] = None,
    output: Annotated[Path, typer.Option(file_okay=False, help="Folder for sbibm.json.")] = Path(
        "results"
    ),
    pages: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            help="Folder for the results page; docs/results for the size paper, else the output.",
        ),
    ] = None,
) -> None:
    """Score the field's common benchmark: five tasks, three numbers of simulations, ten observations with exact posteriors."""
    from eande.foundations.checks import InputError
    from eande.simulators.sbibm import TASKS
    from eande.studies import sbibm as study

    console = Console()
    for name in task or ():
        if name not in TASKS:
            raise typer.BadParameter(
                f"expected {' or '.join(TASKS)}, got {name}", param_hint="--task"
            )

    def report(run: dict[str, Any]) -> None:
        console.print(
            f"{run['task']}, {run['simulations']:,} simulations: C2ST {run['median']:.3f} after {run['seconds_training']:.0f} s of training"
        )

    try:
        path = wheel or study.fetch_wheel(Path.home() / ".cache" / "eande")
        runs = study.run(
            size.value,
            task or list(TASKS),
            path,
            output,
            seed=seed,
            progress=size is not Size.toy,
            report=report,
        )
    except (InputError, ImportError) as error:
        raise typer.BadParameter(str(error)) from None
    page = (pages or (Path("docs/results") if size is Size.paper else output)) / "sbibm.md"
    study.write_page(runs, page)
    console.print(f"wrote {output / 'sbibm.json'} and {page}")


class Lorenz96Size(StrEnum):
    """How large the Lorenz 96 study is."""

    paper = "paper"
    smoke = "smoke"
    small = "small"
    demo = "demo"
    toy = "toy"


class Device(StrEnum):
    """Where to run."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Part(StrEnum):
    """Which table or figure of the Lorenz 96 study; printed is the main table for the system as printed, b = 1."""

    main = "main"
    printed = "printed"
    timing = "timing"
    training = "training"
    views = "views"
    symmetry = "symmetry"
    normalizer = "normalizer"
    search = "search"
    page = "page"


@reproduce.command()
def lorenz96(
    size: Annotated[
        Lorenz96Size,
        typer.Option(
            help="paper: ResNet-34, a GPU; smoke: its code in a minute; small: two cores; demo: minutes; toy."
        ),
    ] = Lorenz96Size.small,
    only: Annotated[
        Part,
        typer.Option(
            help="Which table or figure; page writes docs/results/lorenz96.md from what was run."
        ),
    ] = Part.main,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="plain (the paper's), anchored, calibrated, aimed or ensemble; all by default."
        ),
    ] = None,
    baselines: Annotated[
        bool, typer.Option(help="NRE-C and NPE-C through sbi, and a generic critic, too.")
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 1,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    device: Annotated[
        Device, typer.Option(help="auto takes a GPU where there is one.")
    ] = Device.auto,
    output: Annotated[
        Path, typer.Option(file_okay=False, help="Folder for the result files and the figure.")
    ] = Path("results"),
    pages: Annotated[
        Path, typer.Option(file_okay=False, help="Folder for the results page.")
    ] = Path("docs/results"),
) -> None:
    """Infer the forcing (F₁, F₂) of Lorenz 96 from windows of 250 × 396 numbers: the posterior is a ring (the paper's Section 5.2)."""
    import torch

    from eande.foundations.checks import InputError
    from eande.simulation.run.blocks import SimulationError
    from eande.studies import lorenz96 as study
    from eande.studies import lorenz96_timing, lorenz96_variants

    console = Console()
    if only is Part.page:
        from eande.studies.lorenz96_page import write_page

        try:
            console.print(f"wrote {write_page(output, pages)}")
        except InputError as error:
            raise typer.BadParameter(str(error)) from None
        return
    known = (*study.METHODS, *study.BASELINES)
    methods = [*(method or study.METHODS), *(study.BASELINES if baselines else ())]
    for name in methods:
        if name not in known:
            raise typer.BadParameter(
                f"expected {' or '.join(known)}, got {name}", param_hint="--method"
            )
    if device is Device.cuda and not torch.cuda.is_available():
        raise typer.BadParameter(
            "expected cpu or auto on a machine without a GPU, got cuda", param_hint="--device"
        )
    where = (
        device.value
        if device is not Device.auto
        else "cuda"
        if torch.cuda.is_available()
        else "cpu"
    )
    common: dict[str, Any] = {"device": where, "progress": size is not Lorenz96Size.toy}
    chosen_seeds = range(first_seed, first_seed + seeds)

    def report(run: dict[str, Any]) -> None:
        reached = max(record["held_out_log_ratio"] for record in run["history"])
        console.print(f"{run['method']}, seed {run['seed']}: {reached:.2f} nats on held-out data")

    try:
        if only is Part.timing:
            lorenz96_timing.run_timing(size.value, output, baselines=baselines, **common)
        elif only is Part.training:
            lorenz96_timing.run_training(size.value, output, **common)
        elif only in (Part.main, Part.printed):
            results = study.run_main(
                size.value,
                methods,
                chosen_seeds,
                output,
                report=report,
                printed=only is Part.printed,
                **common,
            )
            console.print(_ring_table(results, study.SIZES[size.value].samples))
            last = next((run for run in reversed(results) if run["model"] is not None), None)
            if last is not None:
                console.print(
                    f"wrote {_ring_figure(last, output / f'lorenz96-{only.value}-posterior.png')}"
                )
        else:
            lorenz96_variants.run_variants(
                only.value, size.value, chosen_seeds, output, report=report, **common
            )
    except (InputError, ImportError, SimulationError) as error:
        raise typer.BadParameter(str(error)) from None
    console.print(f"wrote {output / f'lorenz96-{only.value}.json'}")


def _ring_table(runs: list[dict[str, Any]], samples: int) -> Table:
    table = Table(title="Lorenz 96: medians over test data", box=SIMPLE)
    for column in ("method", "seed", "nats", "MMD²", "angle", "error", "z", "50/80/95"):
        table.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
    for run in runs:
        table.add_row(
            run["method"], str(run["seed"]), f"{run['mean_log_ratio']:.2f}", f"{run[f'median_mmd2_0.05_{samples}']:.4f}",
            f"{run['median_angular_tv']:.3f}", f"{run['median_radial_error']:.3f}", f"{run['radial_z_rms']:.2f}",
            "/".join(f"{100 * share:.0f}" for share in run["coverage"].values()),
        )  # fmt: skip
    floors = (
        f"{runs[-1][f'median_mmd2_floor_0.05_{samples}']:.4f}",
        f"{runs[-1]['median_angular_tv_floor']:.3f}",
    )
    table.add_row("floor", "", "", *floors, "", "1.00", "50/80/95")
    table.caption = (
        "nats: mean log ratio of the true parameters. MMD² (σ = 0.05) and total variation of the angle to the reference circle; floor: those of the "
        "reference to itself. error: of F. z: root mean square of the radial z-score. 50/80/95: how often such regions cover the truth, in %."
    )
    return table


def _ring_figure(run: dict[str, Any], path: Path) -> Path:
    import torch

    from eande import plots
    from eande.studies import ring

    # An observation whose ring lies inside the square.
    forcing = run["data"].test_phi.norm(dim=1)
    chosen = int((forcing - 10).abs().argmin())
    posterior = run["model"].posteriors(run["data"].test_y[chosen : chosen + 1], draws=100_000)[0]
    side = torch.linspace(-ring.HALF_WIDTH, ring.HALF_WIDTH, 300)
    density = (
        (posterior.score(torch.cartesian_prod(side, side)) - posterior.log_normalizer)
        .exp()
        .reshape(300, 300)
        .cpu()
        .numpy()
    )
    samples = ring.draw(posterior, 4_000, 0)[0].cpu().numpy()
    reference = ring.reference_samples(forcing[chosen].item(), 4_000, 0).numpy()
    title = f"(F₁, F₂) given one window of 99,000 numbers, F = {forcing[chosen]:.2f}"
    figure = plots.ring(
        density, samples, reference, half_width=ring.HALF_WIDTH, title=title, method=run["method"]
    )
    figure.savefig(path, dpi=130)
    return path
