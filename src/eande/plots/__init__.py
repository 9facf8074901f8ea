"""Results in, matplotlib figures out; matplotlib is loaded when the first figure is asked for."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eande.plots.comparisons import boxes, curves, distance_boxes
    from eande.plots.corners import corner
    from eande.plots.diagnostics import coverage, diagnosis, ellipses
    from eande.plots.posteriors import posterior_grid, ring
    from eande.plots.predictions import predictive
    from eande.plots.runs import training
    from eande.plots.sequential import rounds

_HOMES = {
    "corner": "corners",
    "training": "runs",
    "rounds": "sequential",
    "predictive": "predictions",
    "coverage": "diagnostics",
    "posterior_grid": "posteriors",
    "ring": "posteriors",
    "diagnosis": "diagnostics",
    "ellipses": "diagnostics",
    "boxes": "comparisons",
    "distance_boxes": "comparisons",
    "curves": "comparisons",
}

__all__ = [
    "corner",
    "training",
    "rounds",
    "predictive",
    "coverage",
    "posterior_grid",
    "ring",
    "diagnosis",
    "ellipses",
    "boxes",
    "distance_boxes",
    "curves",
]


def __getattr__(name: str) -> Any:
    """Load a figure function from its home."""
    if name not in _HOMES:
        raise AttributeError(f"module 'eande.plots' has no attribute {name!r}")
    return getattr(import_module(f"eande.plots.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Return the figure functions."""
    return list(__all__)
