"""simulate: from a prior and a simulator to simulations, anywhere from one core to a cluster.

Work is cut into blocks with a random stream each, so that the result depends on the seed and the
block size alone: not on the executor, the order in which blocks end, interruptions, or extensions
(an extension starts a new block).
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eande.foundations.checks import (
    EandeWarning,
    InputError,
    check_at_least,
    check_choice,
    check_count,
    check_flag,
    check_function,
    check_positive,
    check_seed,
)
from eande.foundations.paths import as_path
from eande.foundations.seeds import derive_seed
from eande.priors.convert import as_prior
from eande.priors.prior import Prior
from eande.simulation.collect import MemoryCollector, StoreCollector
from eande.simulation.read.simulations import Simulations
from eande.simulation.run.blocks import Job, Simulator, summarize_reasons
from eande.simulation.run.executors import check_executor, make_pool
from eande.simulation.run.scheduler import Scheduler
from eande.simulation.store.provenance import describe_prior, describe_simulator

DESIGNS = ("random", "even")
_LARGEST_BLOCK = 1_000_000


def simulate(
    simulator: Simulator,
    prior: Any,
    n: int,
    *,
    store: str | Path | None = None,
    executor: Any = None,
    seed: int = 0,
    design: str = "random",
    block_size: int | None = None,
    timeout: float | None = None,
    failure_limit: float = 0.5,
    redo: str | None = None,
    progress: bool = True,
) -> Simulations:
    """Draw ``n`` parameters from the prior and simulate each.

    A simulation that raises an exception or gives NaN, infinity or data of another shape than the
    others counts as failed: it is in ``simulations.failures`` with its parameters and the reason,
    and the run goes on.

    Args:
        simulator: ``simulator(phi, rng) -> y`` for a batch of parameters: ``phi`` an array (m, D),
            ``rng`` a ``numpy.random.Generator``, ``y`` an array or tensor whose first axis is m.
            :func:`each` makes one from a function of a single vector.
        prior: an eande prior or a torch Distribution.
        n: number of simulations, failed ones included.
        store: a folder. Every complete block is kept there whatever happens: the same call goes on
            after a crash, a larger ``n`` extends it, and several processes may make the same call
            at once. None keeps everything in memory.
        executor: where to run: None here, a number in as many worker processes, or any executor of
            ``concurrent.futures`` or dask client. With a store, workers write to it themselves and
            must see its folder.
        seed: same seed and block size, same simulations.
        design: ``"random"`` draws the parameters; ``"even"`` (for a :class:`BoxPrior` or
            :class:`ProductPrior`) takes a scrambled Sobol sequence of the prior, which leaves
            smaller gaps: worth it for expensive simulators.
        block_size: simulations per call of the simulator, and what a crash can lose; 100 or what
            the store has. For data of megabytes each, or simulations of minutes, take fewer.
        timeout: seconds one call of the simulator may take (one simulation for :func:`each`, else
            a block, whose simulations are then tried one by one); enforced in worker processes of
            our own only.
        failure_limit: stop when more than this share has failed.
        redo: ``"failed"`` runs the failed simulations of the store again, and no others: one by
            one, each with a random stream of its own (of seed, block and row). ``"damaged"`` checks
            the whole store and simulates damaged blocks again. Either way a block stays as it is
            until what replaces it is complete; a damaged one also where a simulation fails now that
            succeeded before, which stops the run.
        progress: whether to show a progress bar.

    Example:
        >>> def simulator(phi, rng):  # 20 readings of a decaying signal, with noise
        ...     time = np.linspace(0, 2, 20)
        ...     return np.exp(-phi * time) + 0.1 * rng.standard_normal((len(phi), 20))
        >>> prior = eande.BoxPrior([0], [5], names=["rate"])
        >>> simulate(simulator, prior, n=100, seed=0, progress=False)
        Simulations(100 of rate and data of shape (20,))
    """
    # Everything is checked before a store is made or extended.
    _check(simulator, n, seed, design, block_size, timeout, failure_limit, redo, progress)
    check_executor(executor)
    if store is not None:
        as_path("store", store, kind="folder")
    known = as_prior(prior)
    if design == "even":
        known.sample_evenly(1, first=0, seed=seed)
    n = int(n)
    seed = int(seed)
    block_size = None if block_size is None else int(block_size)
    collector: MemoryCollector | StoreCollector
    if store is None:
        if redo is not None:
            raise InputError(f"redo: expected None without a store, got {redo!r}")
        collector = MemoryCollector(n, block_size, known.own_names)
    else:
        about = {
            "prior": describe_prior(known),
            "simulator": describe_simulator(simulator),
            "seed": seed,
            "design": design,
        }
        collector = StoreCollector(store, n, about, known.dimension, block_size, redo)

    missing = collector.missing()
    if missing:
        make_job = _job_maker(known, design, seed, collector, redo)
        scheduler = Scheduler(collector, make_job, n, failure_limit)
        pool = make_pool(
            executor, timeout, simulator, collector.open_store, lambda: scheduler.stopping
        )
        try:
            scheduler.run(pool, missing, progress)
        finally:
            pool.close()
        if scheduler.reasons:
            warnings.warn(
                f"{scheduler.reasons.total()} of {scheduler.ended} simulations failed "
                f"({summarize_reasons(scheduler.reasons.elements())}): see simulations.failures; "
                f"the first alone: {scheduler.once_more}",
                EandeWarning,
                stacklevel=2,
            )
    return collector.simulations()


def _job_maker(
    prior: Prior,
    design: str,
    seed: int,
    collector: MemoryCollector | StoreCollector,
    redo: str | None,
) -> Callable[[int], Job]:
    """Return what makes the job of a block: its parameters depend on seed, number and size."""
    sizes = collector.sizes

    def make_job(block: int) -> Job:
        if design == "even":
            phi = prior.sample_evenly(sizes[block], first=sum(sizes[:block]), seed=seed)
        else:
            phi = prior.sample(sizes[block], seed=derive_seed(seed, "phi", block))
        return Job(
            block,
            phi.numpy(),
            seed,
            ticket=uuid.uuid4().hex,
            replaces=collector.replaces.get(block),
            failed_only=redo == "failed",
        )

    return make_job


def _check(
    simulator: Any,
    n: int,
    seed: int,
    design: str,
    block_size: int | None,
    timeout: float | None,
    failure_limit: float,
    redo: str | None,
    progress: bool,
) -> None:
    """Refuse what cannot be simulated."""
    check_function("simulator", simulator, "(phi, rng)")
    check_count("n", n, 1)
    check_seed("seed", seed)
    check_choice("design", design, DESIGNS)
    check_at_least("failure_limit", failure_limit, 0)
    if failure_limit > 1:
        raise InputError(f"failure_limit: expected a share of at most 1, got {failure_limit}")
    if block_size is not None:
        check_count("block_size", block_size, 1, _LARGEST_BLOCK)
    if timeout is not None:
        check_positive("timeout", timeout)
    check_flag("progress", progress)
    if redo is not None:
        check_choice("redo", redo, ("damaged", "failed"))
