r"""rounds: simulations where an observation needs them, by priors cut off around its posterior.

    R_1 = everything,      R_{k+1} = R_k ∩ {φ : the model of round k leaves mass there}

Every round simulates parameters of the prior inside its region, p(φ) 1[φ ∈ R_k] / p(R_k), and fits
a model to all simulations of any round that lie inside. Its ratio is relative to that prior, and
nothing is corrected: within the region the posterior is the same as under the whole prior, but for
the mass outside (:mod:`eande.sequential.region` says how little that is).

Exact, given the regions: they lie one in the other, so that older simulations inside are draws of
the present prior, as failed ones are; draws are made by rejection; no fit begins from the weights
of an earlier one, which had seen what is held out now. Not exact: a region is chosen by a model
that was fitted to simulations that are used again inside. ``reuse=False`` does without them.

Only data like the observations may be given to such a model: it warns of a posterior that lies at
the edge of its region.

References:
    Miller, Cole, Forré, Louppe and Weniger, *Truncated marginal neural ratio estimation*, 2021;
    Deistler, Gonçalves and Macke, *Truncated proposals for scalable and hassle-free
    simulation-based inference*, 2022.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eande.foundations.checks import (
    EandeWarning,
    InputError,
    as_float_tensor,
    check_count,
    check_finite,
    check_flag,
    check_function,
    check_instance,
    check_seed,
    show_shape,
)
from eande.foundations.files import check_writable, clear_folder, digest_of
from eande.foundations.paths import as_path
from eande.foundations.seeds import derive_seed
from eande.inference.model import EmbedAndEmulate
from eande.priors.convert import as_prior
from eande.priors.prior import Prior
from eande.priors.truncated import TruncatedPrior, percent
from eande.sequential.folder import Fitting, RoundsFolder, read_end, write_end
from eande.sequential.judging import Judged, judge
from eande.sequential.pool import Pool
from eande.sequential.record import Round, Rounds, table_header, table_lines
from eande.sequential.region import cut, mass_of, shrinks
from eande.similarities.prior_only import PriorOnly
from eande.similarities.similarity import Similarity
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.sources import digest, take
from eande.simulation.read.views import View, fixed_views
from eande.simulation.run.blocks import Simulator
from eande.simulation.run.executors import check_executor
from eande.simulation.simulate import simulate
from eande.training.build import Networks, check_members
from eande.training.prepare import check_types
from eande.training.settings import FitSettings

# A round of fewer simulations tells too little of where the next should be.
_FEWEST = 20
_MOST_ROUNDS = 100
# A region that would lose less than this share of its mass stays as it is.
_LEAST_SHRINKING = 0.2
# Nats by which a held-out score rises that still rises.
_LEAST_GAIN = 0.02


def rounds(
    simulator: Simulator,
    prior: Any,
    y_observed: Any,
    *,
    simulations: int,
    rounds: int = 4,
    store: str | Path | None = None,
    checkpoint: str | Path | None = None,
    encoder: nn.Module | str | None = None,
    emulator: nn.Module | None = None,
    similarity: Similarity | str | None = None,
    views: View | None = None,
    settings: FitSettings | None = None,
    members: int = 1,
    reuse: bool = True,
    executor: Any = None,
    block_size: int | None = None,
    timeout: float | None = None,
    failure_limit: float = 0.5,
    redo: str | None = None,
    seed: int = 0,
    progress: bool = True,
) -> tuple[EmbedAndEmulate, Rounds]:
    """Simulate and fit in rounds, each nearer to where the posterior of an observation is.

    After every round the prior is cut off where the model leaves no more than a ten-thousandth of
    the posterior's mass, and the next round simulates what is left of it. One in ten simulations is
    never fitted to: these judge every model. Where they say that it is not to be trusted near the
    observation, the next round simulates in the same region again. Rounds end early where the
    region shrinks no more and the held-out score rises no more.

    The model is for data like the observations only. The same call goes on where it was stopped,
    if it has a ``checkpoint``.

    Args:
        simulator: as for :func:`eande.simulate`.
        prior: an eande prior or a torch Distribution.
        y_observed: the observation, or several along a first axis: the region is then the union of
            theirs.
        simulations: how many in all rounds together, failed ones included.
        rounds: among how many they are shared out.
        store: a folder for the simulations of every round; None for the checkpoint's, or memory.
        checkpoint: a folder. A run killed at any moment goes on from there to the same result; one
            with another observation begins with the same first round.
        encoder: as for :func:`eande.fit`.
        emulator: likewise.
        similarity: likewise.
        views: likewise; cut the observations to the shape of a view, as in ``y_observed[:250]``.
        settings: likewise.
        members: likewise.
        reuse: whether to fit to what lies in the region of earlier rounds, too.
        executor: where to simulate, as for :func:`eande.simulate`.
        block_size: likewise.
        timeout: likewise.
        failure_limit: likewise.
        redo: likewise, in the stores of all rounds.
        seed: of simulations and regions; that of the fits is in the settings.
        progress: whether to show progress bars, and a line of every round.

    Example:
        >>> wide = eande.BoxPrior([-5, -5], [5, 5], names=["slope", "offset"])
        >>> settings = eande.FitSettings(epochs=5, start="linear", device="cpu")  # short
        >>> model, info = rounds(
        ...     simulator,
        ...     wide,
        ...     y_observed,
        ...     simulations=400,
        ...     rounds=2,
        ...     settings=settings,
        ...     progress=False,
        ... )
        >>> model.prior
        TruncatedPrior(...% of BoxPrior(slope=(-5, 5), offset=(-5, 5)))
        >>> phi, _ = model.posterior(y_observed).sample(1_000)
        >>> info.simulations, info.stopped
        (400, 'all simulations are made')
    """
    observed = as_float_tensor("y_observed", y_observed)
    check_function("simulator", simulator, "(phi, rng)")
    check_count("rounds", rounds, 1, _MOST_ROUNDS)
    check_count("simulations", simulations, _FEWEST * rounds)
    check_flag("reuse", reuse)
    check_flag("progress", progress)
    check_seed("seed", seed)
    check_executor(executor)
    check_instance("settings", settings, FitSettings, "FitSettings(...) or None", optional=True)
    settings = FitSettings() if settings is None else settings
    check_count("members", members, 1)
    check_members(members, encoder, emulator)
    # What a fit would refuse after the first round; of data nothing is known yet.
    nothing = Simulations(torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1))
    networks = Networks(encoder, emulator, None)
    given = {"views": views, "callback": None, "progress": progress, "checkpoint": None}
    check_types(nothing, settings, None, networks, **given)
    if settings.missing != "mask":
        check_finite("y_observed", observed)
    if similarity is not None:
        settings = replace(settings, similarity=similarity)
    fitting = Fitting(
        {
            "encoder": encoder,
            "emulator": emulator,
            "views": views,
            "settings": settings,
            "members": members,
            "progress": progress,
        }
    )

    def made_from(prior: Prior, n: int, seed: int, store: Path | None) -> Simulations:
        return simulate(
            simulator,
            prior,
            n,
            store=store,
            executor=executor,
            seed=seed,
            block_size=block_size,
            timeout=timeout,
            failure_limit=failure_limit,
            redo=redo,
            progress=progress,
        )

    run = _Run(
        simulator=simulator,
        simulate=made_from,
        observed=observed,
        sizes=_shared_out(simulations, rounds),
        fitting=fitting,
        folder=_folder(checkpoint, store),
        pool=Pool(seed, reuse=reuse),
        reuse=reuse,
        seed=seed,
        progress=progress,
    )
    return run.all(as_prior(prior))


def _shared_out(simulations: int, rounds: int) -> list[int]:
    """Return how many simulations each round makes: as many, or one more in the first ones."""
    each, more = divmod(int(simulations), int(rounds))
    return [each + (number < more) for number in range(rounds)]


def _folder(checkpoint: Any, store: Any) -> RoundsFolder:
    """Return where rounds are kept, tried before anything is simulated."""
    folders = []
    for name, given in (("checkpoint", checkpoint), ("store", store)):
        folder = None if given is None else as_path(name, given, kind="folder")
        if folder is not None:
            check_writable(folder / "rounds")
        folders.append(folder)
    return RoundsFolder(*folders)


@dataclass
class _Run:
    """The rounds of a call.

    Args:
        simulator: the user's.
        simulate: ``simulate(prior, n, seed, store)``, all else as the call says.
        observed: observations as they were given.
        sizes: simulations of each round.
        fitting: how models are fitted.
        folder: where all is kept.
        pool: simulations of all rounds.
        reuse: whether older ones are used again.
        seed: of simulations and regions.
        progress: whether to show anything.
    """

    simulator: Simulator
    simulate: Callable[[Prior, int, int, Path | None], Simulations]
    observed: Tensor
    sizes: list[int]
    fitting: Fitting
    folder: RoundsFolder
    pool: Pool
    reuse: bool
    seed: int
    progress: bool

    def all(self, prior: Prior) -> tuple[EmbedAndEmulate, Rounds]:
        """Make one round after the other."""
        if self.progress:
            print(table_header(), flush=True)
        found: list[Round] = []
        before: EmbedAndEmulate | None = None
        made_of = ""
        stopped = "all simulations are made"
        for number, n in enumerate(self.sizes, start=1):
            began = time.perf_counter()
            own = derive_seed(self.seed, "round", number)
            store = self.folder.store(number, prior, self.simulator, own)
            made = self.simulate(prior, n, own, store)
            if number == 1:
                self.observed = self._as_several(made)
            self.pool.add(made)
            simulated = time.perf_counter() - began
            fitted, held_out = self.pool.inside(prior)
            model, of_model = self.folder.model(number, self.fitting, fitted, prior)
            seconds = (simulated, time.perf_counter() - began - simulated)
            made_of = digest_of(
                earlier=made_of,
                model=of_model,
                observed=digest(self.observed),
                held_out=held_out.fingerprint(),
                sizes=self.sizes[number - 1 :],
                seed=self.seed,
            )
            path = self.folder.end(number, made_of=made_of)
            if path is not None and path.exists():
                one, narrower = read_end(path)
            else:
                one = _record(number, made, fitted, prior, seconds)
                one, narrower = self._end(one, model, before, fitted, held_out)
                if path is not None:
                    write_end(path, one, narrower)
            found.append(one)
            if self.progress:
                print("\n".join(table_lines(one)), flush=True)
            if one.settled:
                left = sum(self.sizes[number:])
                stopped = (
                    "the region shrinks no more, and the held-out score rises no more; "
                    f"{left:,} simulations were not made"
                )
                break
            before = model
            prior = prior if narrower is None else narrower
        info = Rounds(tuple(found), stopped, fitted, held_out)
        if self.folder.path is not None:
            info.save(self.folder.path / f"rounds-{made_of}.json")
            clear_folder(self.folder.path)
        if not info.trusted:
            warnings.warn(
                "y_observed: the model is not to be trusted near it: "
                f"{'; '.join(info.rounds[-1].alarms)}",
                EandeWarning,
                stacklevel=3,
            )
        return model, info

    def _as_several(self, made: Simulations) -> Tensor:
        """Return the observations along a first axis."""
        views = self.fitting.arguments["views"]
        shape = next(fixed_views(views, take(made.y, slice(1)))).shape[1:]
        if self.observed.shape == shape:
            return self.observed.unsqueeze(0)
        if self.observed.shape[1:] == shape and len(self.observed):
            return self.observed
        raise InputError(
            f"y_observed: expected shape {show_shape(shape)}, as simulated, or "
            f"{show_shape(('m', *shape))}, got {show_shape(self.observed.shape)}"
        )

    def _end(
        self,
        one: Round,
        model: EmbedAndEmulate,
        before: EmbedAndEmulate | None,
        fitted: Simulations,
        held_out: Simulations,
    ) -> tuple[Round, TruncatedPrior | None]:
        """Judge a round, and find the prior of the next; None for the same again."""
        views = self.fitting.arguments["views"]
        seed = derive_seed(self.seed, "judged", one.number)
        judged = judge(model, before, held_out, self.observed, views=views, seed=seed)
        one = replace(one, **judged._asdict())
        if one.number == len(self.sizes):
            return one, None
        narrower, text, shrunk = self._narrower(one, model, fitted, judged)
        risen = judged.gain is None or judged.gain > _LEAST_GAIN
        return replace(one, next_region=text, settled=not (shrunk or risen)), narrower

    def _narrower(
        self, one: Round, model: EmbedAndEmulate, fitted: Simulations, judged: Judged
    ) -> tuple[TruncatedPrior | None, str, bool]:
        """Return the next prior, what is to be said of it, and whether it might still shrink."""
        again = "the same region again: "
        if _learned_nothing(model):
            return None, f"{again}nothing was learned of what is in it", True
        if judged.alarms:
            return None, f"{again}the model is not to be trusted near the observation", True
        seed = derive_seed(self.seed, "cut", one.number)
        wanted = self.sizes[one.number]
        found = cut(model, self.observed, fitted.phi, wanted=wanted, seed=seed)
        if found.prior is None:
            return None, f"{again}of a smaller one, {found.reason}", False
        kept = f"{percent(math.exp(found.prior.log_mass - one.log_mass))} of it"
        if not shrinks(found.prior, model.prior, _LEAST_SHRINKING):
            return None, f"{again}a smaller one would keep {kept}", False
        return found.prior, f"the next region keeps {kept}", True


def _learned_nothing(model: EmbedAndEmulate) -> bool:
    """Return whether a fit found nothing better than the prior, by no member either."""
    each = [one.similarity for one in model.members or (model,)]
    return isinstance(model.similarity, PriorOnly) or all(
        isinstance(one, PriorOnly) for one in each
    )


def _record(
    number: int,
    made: Simulations,
    fitted: Simulations,
    prior: Prior,
    seconds: tuple[float, float],
) -> Round:
    """Return what is known of a round before its model is judged."""
    cut_off = prior if isinstance(prior, TruncatedPrior) else None
    return Round(
        number=number,
        simulations=len(made) + len(made.failures),
        failed=len(made.failures),
        inside=len(fitted),
        held_out=0,
        log_mass=mass_of(prior),
        log_mass_error=0.0 if cut_off is None else cut_off.log_mass_error,
        acceptance=1.0 if cut_off is None else cut_off.acceptance,
        score=None,
        error=None,
        gain=None,
        alarms=(),
        seconds_simulating=seconds[0],
        seconds_fitting=seconds[1],
    )
