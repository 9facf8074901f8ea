r"""Posterior predictive simulations: what would be seen again, if the posterior is right.

    φ_i ~ q(φ | y),      y_i ~ p(y | φ_i)

They cost runs of the simulator, so they are returned whole: one set of them serves figures,
:func:`eande.predictive_check` and :func:`eande.diagnose_near`.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eande.foundations.checks import (
    InputError,
    check_count,
    check_flag,
    check_function,
    check_instance,
    check_seed,
)
from eande.foundations.seeds import derive_seed
from eande.inference.posterior import Posterior
from eande.priors.draws import EmpiricalPrior
from eande.simulation.read.simulations import Simulations
from eande.simulation.run.blocks import Simulator
from eande.simulation.simulate import simulate

# In so many blocks: enough to keep a few processes busy, and to see progress.
_BLOCKS = 20


class _Listed(EmpiricalPrior):
    """Samples that are handed out in their order, each once, whatever the blocks."""

    def sample_evenly(self, n: int, *, first: int, seed: int) -> Tensor:
        """Return ``n`` of them from the ``first`` on."""
        return self.draws[first : first + n]


def predict(
    posterior: Posterior,
    simulator: Simulator,
    n: int = 500,
    *,
    store: str | Path | None = None,
    executor: Any = None,
    seed: int = 0,
    progress: bool = True,
) -> Simulations:
    """Draw parameters from a posterior and simulate each.

    Args:
        posterior: of an observation.
        simulator: as for :func:`eande.simulate`.
        n: number of simulations, failed ones included: these are in ``failures``.
        store: a folder for them, as for :func:`eande.simulate`: the same call goes on there.
        executor: where to run, as for :func:`eande.simulate`.
        seed: same seed, same simulations.
        progress: whether to show a progress bar.

    Example:
        >>> predicted = predict(posterior, simulator, 200, progress=False)
        >>> predicted.phi.shape, predicted.y.shape
        (torch.Size([200, 2]), torch.Size([200, 10]))
        >>> print(eande.predictive_check(model, y_observed, simulations=predicted, progress=False))
        observation 0: like the simulations, p = ...
    """
    check_instance(
        "posterior", posterior, Posterior, "a Posterior (from a model: model.posterior(y))"
    )
    check_function("simulator", simulator, "(phi, rng)")
    check_count("n", n, 1)
    check_seed("seed", seed)
    check_flag("progress", progress)
    phi, _ = posterior.sample(n, seed=derive_seed(seed, "predicted parameters"))
    # A seed of its own: noise that the model was trained on would be met again.
    return simulate(
        simulator,
        _Listed(phi, names=posterior.prior.names),
        n,
        store=store,
        executor=executor,
        seed=derive_seed(seed, "predicted data"),
        design="even",
        block_size=-(-n // _BLOCKS),
        progress=progress,
    )


def predicted(
    posterior: Posterior,
    simulator: Simulator | None,
    n: int,
    simulations: Simulations | None,
    *,
    fewest: int,
    executor: Any,
    seed: int,
    progress: bool,
) -> Simulations:
    """Return predictive simulations: those made before, or new ones; each a group of its own.

    Args:
        posterior: of an observation.
        simulator: None where there are simulations.
        n: number of new ones.
        simulations: made before by :func:`predict`, None for new ones.
        fewest: refuse fewer that succeeded.
        executor: of :func:`predict`.
        seed: of :func:`predict`.
        progress: of :func:`predict`.
    """
    check_instance(
        "simulations",
        simulations,
        Simulations,
        "Simulations (by eande.predict of this posterior) or None",
        optional=True,
    )
    if simulations is not None:
        made = simulations
        more = "predict more"
    elif simulator is None:
        raise InputError(
            "simulator: expected a function of (phi, rng), got neither it nor simulations"
        )
    else:
        made = predict(posterior, simulator, n, executor=executor, seed=seed, progress=progress)
        more = "ask for more (n=)"
    if len(made) < fewest:
        tried = len(made) + len(made.failures)
        name = "simulator" if simulations is None else "simulations"
        raise InputError(
            f"{name}: expected at least {fewest} of {tried} simulations to succeed, "
            f"got {len(made)}; {more}"
        )
    # Samples may repeat, data of the same parameters are no less independent for that.
    return Simulations(made.phi, made.y, torch.arange(len(made)), made.failures, made.names)
