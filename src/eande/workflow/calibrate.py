"""The step that makes the regions of a model cover as often as they say."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from eande.calibration.calibrate import Calibration, calibrate
from eande.foundations.checks import InputError
from eande.foundations.files import digest_file, digest_of, write_json
from eande.foundations.seeds import derive_seed
from eande.simulation.read.simulations import Simulations
from eande.simulation.simulate import simulate
from eande.simulation.store.provenance import describe_prior
from eande.workflow.steps import (
    Context,
    Taken,
    check_extent,
    check_simulator,
    extent,
    halves,
    is_damaged,
    is_whole,
    load_model,
    parts,
)

# Fresh simulations: this share of those of the study, from so many to so many.
_SHARE = 0.2
_FEWEST = 300
_MOST = 1_000
# Of fewer nothing is learned of how often regions cover.
_FEWEST_HELD_OUT = 40


def take_calibrate(context: Context, *, n: int | None = None, executor: Any = None) -> Taken:
    """Calibrate the run's model on simulations used for nothing else; later steps take the result.

    Fresh simulations are made for it, into a store of their own. A study of simulations that exist
    already gives half of those held out, and the other half checks the model from then on.

    Args:
        context: study and folder.
        n: number of fresh simulations; more extends.
        executor: where to simulate, as for :func:`eande.simulate`.
    """
    folder = context.folder
    _, held_out = parts(context)
    model = load_model(context, folder.model)
    with folder.alone():
        if context.study.simulator is not None:
            fresh = _fresh(context, n, executor)
        else:
            if n is not None or executor is not None:
                raise InputError(
                    "calibrate: expected a study with a simulator, got one whose simulations exist "
                    "already: half of those held out calibrate"
                )
            fresh = _half(held_out)
        fitted = digest_file(folder.model)
        inputs = digest_of(model=fitted, fresh=fresh.fingerprint())
        again = folder.is_done("calibrate", inputs, folder.calibrated, folder.calibration)
        again = again and is_whole(folder.calibrated)
        calibrated, info = calibrate(
            model, fresh, views=context.study.views, progress=context.progress
        )
        content = asdict(info) | {"simulations": len(fresh)}
        if not again:
            calibrated.save(folder.calibrated)
            write_json(folder.calibration, content)
            context.remember("calibrate", inputs, model=fitted, simulations=len(fresh))
    text = f"{_in_words(info)}, by {len(fresh):,} simulations used for nothing else"
    return Taken("calibrate", text, [folder.calibrated, folder.calibration], content, again=again)


def undo_calibrate(context: Context) -> Taken:
    """Go back to the model as it was fitted."""
    folder = context.folder
    with folder.alone():
        there = folder.calibrated.exists()
        folder.calibrated.unlink(missing_ok=True)
        folder.calibration.unlink(missing_ok=True)
    text = "the model is again as it was fitted" if there else "the model is not calibrated"
    return Taken("calibrate", text, [], {"calibrated": False}, again=not there)


def _fresh(context: Context, n: int | None, executor: Any) -> Simulations:
    """Return simulations for the calibration alone."""
    study, folder = context.study, context.folder
    assert study.simulator is not None
    assert study.prior is not None
    simulator = check_simulator(context, "simulate", folder.store)
    store = folder.fresh(digest_of(simulator=simulator, prior=describe_prior(study.prior)))
    if n is None:
        n = max(extent(store), min(_MOST, max(_FEWEST, round(_SHARE * study.n))))
    check_extent(store, n)
    return simulate(
        study.simulator,
        study.prior,
        n,
        store=store,
        executor=executor,
        redo="damaged" if is_damaged(store) else None,
        seed=derive_seed(study.seed, "calibrate") % 2**31,
        progress=context.progress,
    )


def _half(held_out: Simulations | None) -> Simulations:
    """Return the half of the held-out simulations that calibrates."""
    got = 0 if held_out is None else len(held_out.groups.unique())
    if held_out is None or got < _FEWEST_HELD_OUT:
        raise InputError(
            f"calibrate: expected at least {_FEWEST_HELD_OUT} parameters held out from training, "
            f"half of which calibrate, got {got}: set held_out in the study file to a larger share"
        )
    return halves(held_out)[0]


def _in_words(found: Calibration) -> str:
    """Say what was found."""
    if found.kind == "none":
        return "nothing is better than leaving the model as it is"
    low, high = found.range
    width = "too narrow" if found.exponent < 1 else "too wide"
    which = f"exponent {found.exponent:.3g}"
    if found.kind == "datum":
        which = f"exponents from {low:.3g} to {high:.3g}, {found.exponent:.3g} in the middle"
    return (
        f"posteriors were {width} ({which}); held-out score {found.before:.2f} before, "
        f"{found.after:.2f} ± {found.error:.2f} nats after"
    )
