"""The figures of the synthetic study: L1 distances per task, and one posterior per κ."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eande import plots
from eande.studies.outputs import write_figure
from eande.studies.synthetic.schema import PAPER_L1
from eande.studies.synthetic.study import Cell, Picture
from eande.studies.synthetic.tables import name_task


def save_figures(
    results: Sequence[dict[str, Any]], pictures: Mapping[Cell, Picture], output: Path
) -> list[Path]:
    """Draw all figures and return their paths.

    Args:
        results: the records of runs.
        pictures: of runs; the first seed's multimodal posteriors are drawn, one per κ.
        output: a folder.
    """
    distances: dict[str, list[float]] = {name_task(*task): [] for task in PAPER_L1}
    for run in results:
        distances[name_task(run["kappa"], run["redundant"])] += run["l1"]
    medians = {name_task(*task): median for task, median in PAPER_L1.items()}
    figures = {
        "synthetic-l1.png": plots.distance_boxes(distances, medians, label="L1 distance"),
    }
    for cell in sorted(pictures, key=lambda cell: cell.seed):
        name = f"synthetic-posterior-kappa{cell.kappa}.png"
        if cell.redundant and name not in figures:
            figures[name] = plots.corner(
                {"Embed & Emulate": pictures[cell].samples},
                reference={"exact": pictures[cell].exact},
                names=["φ_R", "φ₁", "φ₂"],
                title=f"One posterior, {name_task(cell.kappa, True)}",
            )
    for name, figure in figures.items():
        write_figure(output / name, figure, dpi=130)
    return [output / name for name in figures]
