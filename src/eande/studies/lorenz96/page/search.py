"""The page's section on the search: every setting that was tried, and what was chosen."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eande.studies.lorenz96.page.parts import Run, group
from eande.studies.lorenz96.search import SEEDS, trials
from eande.studies.lorenz96.sizes import SIZES
from eande.studies.lorenz96.tables import recipe_of, size_of
from eande.studies.markdown import table


def search_section(content: dict[str, Any], _: Path, __: Path) -> list[str]:
    """Return a table of trials for every method, system and size."""
    parts = [
        "## The search\n",
        "Settings are frozen before any test data are looked at: one after the other takes its "
        f"best value on simulations held out, with seeds that no table uses ({SEEDS[0]}, and "
        f"{SEEDS[1]} for the best two). Scores are those held out, means over the seeds.\n",
    ]
    for size, of_size in group(content["runs"], "size", list(SIZES)).items():
        for method, of_method in group(of_size, "method", []).items():
            for b, runs in group(of_method, "b", []).items():
                parts += _trials(size, method, b, runs)
    return parts


def _trials(size: str, method: str, b: float, runs: Sequence[Run]) -> list[str]:
    search = trials(runs, method, b, SIZES[size])
    chosen = search.best()
    tried = [_settings(run) for run in runs]
    common = {
        name: value
        for name, value in tried[0].items()
        if all(one.get(name) == value for one in tried)
    }
    rows = []
    for repeated in group(runs, "trial", [run["trial"] for run in runs]).values():
        settings = _settings(repeated[0])
        name = _show({key: settings[key] for key in settings if key not in common}) or "as above"
        if recipe_of(repeated[0]) == chosen:
            name = f"**{name}**"
        done = [run for run in repeated if not run.get("failed")]
        measured = [
            [run["score"] for run in done],
            [run["medians"][f"mmd2_0.05_{size_of(run).samples}"] for run in done],
            [run["medians"]["angular_tv"] for run in done],
        ]
        cells = [f"{np.mean(values):.4f}" if values else "failed" for values in measured]
        rows.append([name, str(len(repeated)), *cells])
    head = ["settings", "seeds", "log ratio, nats", "MMD² σ = 0.05", "angle TV"]
    ended = not search.missing()
    said = "in bold, the best by " if ended else "not ended yet; so far the best by "
    judge = {"log_ratio": "the log ratio", "mmd2": "MMD²"}[search.judged_by]
    return [
        f"### {method}, b = {b:g}, size {size}\n",
        f"All with {_show(common)}; {said}{judge}.\n" if common else f"{said}{judge}.\n",
        table(head, rows),
    ]


def _settings(run: Run) -> dict[str, Any]:
    recipe = recipe_of(run)
    return {"steps": recipe.steps} | dict(recipe.settings)


def _show(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items())
