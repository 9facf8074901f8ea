"""Simulations in rounds, nearer and nearer to where the posterior of the observation is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from eande.foundations.checks import InputError
from eande.sequential.rounds import rounds
from eande.simulation.read.views import fixed_views
from eande.workflow.folder import RunFolder
from eande.workflow.report import take_report
from eande.workflow.steps import Context, Taken, check_simulator, fit_settings, take_sample


def take_rounds(
    context: Context,
    overrides: Mapping[str, Any] | None = None,
    *,
    n: int | None = None,
    number: int = 4,
    executor: Any = None,
    redo: str | None = None,
) -> Iterator[Taken]:
    """Simulate and fit in rounds for the study's observation, sample, and write a report.

    All of it lies in a folder of its own in the run's, for the model is of this observation alone.

    Args:
        context: study and folder.
        overrides: settings of every fit, by name.
        n: simulations of all rounds together; None for the study's.
        number: of rounds.
        executor: where to simulate, as for :func:`eande.simulate`.
        redo: what to simulate again, as for :func:`eande.simulate`.
    """
    study = context.study
    if study.simulator is None or study.prior is None:
        raise InputError(
            "rounds: expected a study with a simulator and a prior, got one whose simulations "
            "exist already"
        )
    if study.observed is None:
        raise InputError(
            f"rounds: expected an observation in {study.path.name} (observed = …), for which they "
            "are made, got none"
        )
    settings = fit_settings(study, overrides or {})
    own = replace(context, folder=RunFolder(context.folder.path / "rounds"))
    folder = own.folder
    inputs = check_simulator(own, "rounds", folder.path / "rounds")
    with folder.alone():
        # Before the first block: whoever interrupts this must not go on with another simulator.
        own.remember("rounds", inputs)
        model, info = rounds(
            study.simulator,
            study.prior,
            _seen(own),
            simulations=study.n if n is None else n,
            rounds=number,
            checkpoint=folder.path / "rounds",
            encoder=study.encoder,
            views=study.views,
            settings=settings,
            executor=executor,
            redo=redo,
            seed=study.seed,
            progress=context.progress,
        )
        model.save(folder.model)
        own.remember("rounds", inputs, simulations=info.simulations, rounds=len(info.rounds))
    content = info.describe() | {"simulations": info.simulations, "trusted": info.trusted}
    # With progress shown, the table has been printed round by round.
    text = f"stopped: {info.stopped}" if context.progress else str(info)
    yield Taken("rounds", text, [folder.model], content)
    own = replace(own, prior=model.prior)
    yield from take_sample(own)
    assert info.fitted is not None
    yield take_report(own, executor=executor, of=(info.fitted, info.held_out))


def _seen(context: Context) -> Tensor:
    """Return the observation as the encoder sees it, one fixed view where the study has views."""
    study = context.study
    observed = torch.as_tensor(study.observed)
    if study.views is None:
        return observed
    (seen,) = torch.cat(list(fixed_views(study.views, observed.unsqueeze(0))))
    return seen
