"""Reference files of the gallery: what a study's exact posterior is, and where it comes from."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from eande.foundations.provenance import provenance


def write(path: Path, study: ModuleType, found: dict[str, Any]) -> None:
    """Write a reference with its provenance; of the samples, a row a line.

    Args:
        path: where.
        study: whose.
        found: by :func:`gallery.mcmc.describe`, and what else is worth keeping.
    """
    content = {"study": study.title, "provenance": provenance("arviz-stats")} | found
    rows = ",\n    ".join(json.dumps(row) for row in content.pop("samples"))
    text = json.dumps(content, indent=2, ensure_ascii=False)
    path.write_text(f'{text[:-2]},\n  "samples": [\n    {rows}\n  ]\n}}\n')
    for name, values in content["parameters"].items():
        print(
            f"{name:12s} {values['mean']:9.4g} ± {values['sd']:.3g}"
            f"   R-hat {values['r_hat']:.4f}   ESS {values['ess']:.0f}"
        )


def rounded(value: Any) -> Any:
    """Return values for JSON with four digits, which is more than any of them is sure of."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def read(path: Path) -> tuple[dict[str, Any], np.ndarray]:
    """Return a reference and its samples (n, D)."""
    content = json.loads(path.read_text())
    return content, np.array(content.pop("samples"))
