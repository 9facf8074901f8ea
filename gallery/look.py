"""Look at a run of a study that has no exact posterior: what it found, and whether to believe it.

    eande run gallery/sunspots/study.py
    python -m gallery.look sunspots

reads the run and writes ``result.json``, ``posterior.png`` and, for a series, ``predicted.png``
into the study's folder: the posterior of the observation, the diagnosis, whether the observation
belongs to the simulations, and whether it looks like those of its own posterior.
"""

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import eande
from eande.foundations.provenance import provenance
from eande.plots.corners import corner
from eande.workflow.folder import run_folder
from eande.workflow.steps import Context, parts, the_model
from eande.workflow.study import read_study
from gallery.references import rounded

# Simulations of the posterior's samples, of which so many are drawn.
PREDICTED = 200
SHOWN = 3


def main() -> None:
    """Read, look, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="of a folder of the gallery")
    folder = Path(__file__).parent / parser.parse_args().name
    study = read_study(folder / "study.py")
    context = Context(study, run_folder(study))
    model = the_model(context)
    _, held_out = parts(context)
    posterior = model.posterior(study.observed)
    summary = posterior.summary(derived=study.derived)
    belonging = eande.Belongs(model, held_out, views=study.views)(study.observed)
    found = {
        "study": study.title,
        "provenance": provenance(),
        "simulations": study.n,
        "posterior": {
            name: {"mean": mean, "sd": sd, "lower": lower, "upper": upper}
            for name, mean, sd, lower, upper in zip(
                summary.names,
                summary.mean.tolist(),
                summary.std.tolist(),
                summary.lower.tolist(),
                summary.upper.tolist(),
                strict=True,
            )
        },
        "modes": [{"phi": mode.phi.tolist(), "weight": mode.weight} for mode in summary.modes],
        "diagnosis": json.loads(context.folder.diagnosis.read_text()),
        "belongs": {"p_value": belonging.p_value.item(), "each": _numbers(belonging.each)},
    }
    samples, _ = posterior.sample(2_000, seed=0)
    figure = corner(samples, names=study.prior.names, prior=study.prior, title=study.title)
    figure.savefig(folder / "posterior.png", dpi=70)
    module = importlib.import_module(f"gallery.{folder.name}.study")
    if hasattr(module, "as_series"):
        made = module.simulator(samples[:PREDICTED].numpy(), np.random.default_rng(0))
        check = eande.predictive_check(model, study.observed, study.simulator, n=PREDICTED)
        found["predictive"] = {"p_value": check.p_value.item(), "each": _numbers(check.each)}
        series = [module.as_series(np.asarray(study.observed)), *module.as_series(made[:SHOWN])]
        _draw(module.FIRST_YEAR, series).savefig(folder / "predicted.png", dpi=80)
    (folder / "result.json").write_text(
        json.dumps(rounded(found), indent=2, ensure_ascii=False) + "\n"
    )
    print(summary)
    print(belonging)


def _numbers(each: dict[str, Any]) -> dict[str, float]:
    return {name: values.item() for name, values in each.items()}


def _draw(first_year: int, series: list[np.ndarray]) -> Figure:
    """Show the observed months above simulated ones."""
    figure = Figure(figsize=(10, 6), layout="constrained")
    axes = figure.subplots(len(series), 1, sharex=True, sharey=True)
    for axis, months in zip(axes, series, strict=True):
        axis.plot(first_year + np.arange(len(months)) / 12, months, linewidth=0.7, color="0.2")
        axis.set_ylabel("sunspots")
    axes[0].set_title("observed", loc="left", fontsize=10)
    axes[1].set_title("simulated with parameters of the posterior", loc="left", fontsize=10)
    axes[-1].set_xlabel("year")
    return figure


if __name__ == "__main__":
    main()
