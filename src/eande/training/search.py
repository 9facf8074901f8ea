"""The search for a schedule: short runs first, longer ones while they gain.

How long to train decides more than anything else how good a model is, and no number suits all:
after fifty steps some problems over-fit, others still gain after thousands. So the length is found,
together with what else is left open:

1. A short run for each plan: networks that start at random or as a ridge regression, negatives of
   L_ΦY that push both networks or the encoder alone. Of the four pairs the one that trials missed
   least is left out: a linear start whose emulator is pushed by few simulations, or is not by many.
   Where data are vectors of which most numbers tell nothing, these are turned down; where they are
   series or grids of which places tell nothing, these are left out; and one plan more sees all.
2. The better half of the plans, those close to the best, is run for three times as many steps,
   from the beginning, because the learning rate decays over the whole of a run.
3. And so on, as long as a longer run is better on held-out pairs, within a budget of steps; within
   three times as many where the last runs gained much and simulations are many.

Every run is validated often, from before its first step on, and the weights of its best moment are
kept. All runs see the same simulations in the same order. Below 2,000 simulations, where a tenth of
them could not tell good from better, a fifth is held out; then the chosen plan is run on the other
four folds, too, and the model is the ensemble of the five, whose score is that of each on the fold
it has not seen. With more simulations, up to three of the runs that were made anyway are one model,
if they do better together.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eande.foundations.checks import (
    InputError,
    check_choice,
    check_count,
    check_number,
    check_same,
)
from eande.foundations.documents import as_document, as_json
from eande.foundations.files import read_tensors, write_tensors
from eande.foundations.seeds import derive_seed, generator
from eande.inference.model import EmbedAndEmulate
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.sources import take
from eande.simulation.read.views import fixed_views
from eande.training.build import have_places
from eande.training.checkpoints import OF_ANOTHER_CALL
from eande.training.linear import can_start_linear
from eande.training.loop import DivergedError
from eande.training.run import Call, Run, Split, doing, tagged
from eande.training.settings import INPUTS, MANY, FitSettings, Schedule
from eande.training.telling import few_tell, places_tell, telling_weights
from eande.training.trackers import Tracked
from eande.training.validation import held_out_log_ratios

# Steps of the first runs (shorter ones mislead: a random start needs them to come near a linear
# one), and the factor from one length to the next.
_FIRST_STEPS = 300
_TIMES_LONGER = 3
# Nats that a longer run must gain for an even longer one to be tried.
_LEAST_GAIN = 0.02
# Nats that make it worth to exceed the budget for a longer one.
_MUCH_GAIN = 0.3
# Nats by which a plan may trail the best and still be run for longer.
_STILL_CLOSE = 0.15
_FOLDS = 5
# Other members than the first end a little after its best moment: they over-fit at about the same.
_TIMES_BEST = 1.5
_STEPS_PAST_BEST = 100
# Runs that make up a model, at most.
_TOGETHER = 3
# Axes of a batch of vectors.
_VECTOR_AXES = 2
# Plans where nothing is given.
_ALL_PLANS = 4
# More steps than anybody takes: a file that says so is damaged.
_MOST_STEPS = 2**53
# Held-out pairs that compare runs.
_COMPARED = 500


class Plan(NamedTuple):
    """What a search tries beside the length.

    Args:
        start: as in :class:`FitSettings`.
        repulsion: likewise.
        inputs: likewise.
    """

    start: str
    repulsion: str
    inputs: str = "all"

    @property
    def name(self) -> str:
        """A part of file names."""
        return "-".join(self if self.inputs != "all" else self[:2])

    def __str__(self) -> str:
        """Return a few words, for progress bars."""
        words = f"{self.start} start, repulsion {self.repulsion}"
        return words if self.inputs == "all" else f"{words}, {self.inputs} inputs"


@dataclass(frozen=True)
class Trial:
    """A run that came to its end.

    Args:
        start: of its plan.
        repulsion: of its plan.
        inputs: of its plan.
        steps: its length.
        score: mean log ratio of held-out pairs by its best weights, in nats.
        error: its standard error.
        best_step: when they were reached.
    """

    start: str
    repulsion: str
    inputs: str
    steps: int
    score: float
    error: float
    best_step: int

    @property
    def plan(self) -> Plan:
        """What was tried."""
        return Plan(self.start, self.repulsion, self.inputs)


@dataclass(frozen=True)
class Found:
    """What a search came to.

    Args:
        trials: all runs, in order.
        reason: why it ended.
        chosen: those whose models are taken, the best first.
    """

    trials: list[Trial]
    reason: str
    chosen: list[int] = field(default_factory=list)

    @property
    def best(self) -> Trial:
        """The run of the highest score."""
        return max(self.trials, key=lambda trial: trial.score)


class Finished(NamedTuple):
    """A run with its model, and the log ratios of its held-out pairs, (m,)."""

    model: EmbedAndEmulate
    trial: Trial
    log_ratios: Tensor


def find_schedule(
    run: Callable[[Plan, int], Trial | None],
    plans: Sequence[Plan],
    first: int,
    budget: int,
    most: int,
) -> Found:
    """Compare plans by short runs, then the better ones by longer runs, while these gain.

    Args:
        run: trains by a plan for so many steps; None if it diverged.
        plans: to compare.
        first: steps of the short runs.
        budget: steps of all runs together; the first ones are made in any case.
        most: the same where the last runs gained much.
    """
    trials = [trial for trial in (run(plan, first) for plan in plans) if trial is not None]
    best = {trial.plan: trial for trial in trials}
    spent = first * len(plans)
    length = first
    kept = len(best)
    gain = 0.0
    while trials:
        length *= _TIMES_LONGER
        kept = math.ceil(kept / 2)
        # A start that no step improved on is the best of a longer run, too.
        improved = sorted(
            (trial for trial in best.values() if trial.best_step > 0),
            key=lambda trial: -trial.score,
        )
        least = max(trial.score for trial in trials) - _STILL_CLOSE
        leaders = [trial.plan for trial in improved[:kept] if trial.score > least]
        kept = len(leaders)
        if not leaders:
            return Found(trials, "no step improved on the best start")
        allowed = most if gain > _MUCH_GAIN else budget
        if spent + kept * length > allowed:
            return Found(trials, f"{spent} of {allowed} steps are spent")
        gain = -math.inf
        for plan in leaders:
            trial = run(plan, length)
            spent += length
            if trial is None:
                continue
            trials.append(trial)
            gain = max(gain, trial.score - best[plan].score)
            best[plan] = max(best[plan], trial, key=lambda one: one.score)
        if gain <= _LEAST_GAIN:
            return Found(trials, f"{length} steps were no better than {length // _TIMES_LONGER}")
    return Found([], "all runs diverged")


def choose_together(log_ratios: Sequence[Tensor], most: int) -> list[int]:
    """Return which models are best together, as the mean of their ratios; the best alone first.

    Further ones are taken while they gain on the held-out pairs. It costs nothing: log r of an
    ensemble is the log mean of its members' r.

    Args:
        log_ratios: of the same held-out pairs, (m,) for each model.
        most: models at most.
    """
    chosen: list[int] = []
    reached = -math.inf
    while len(chosen) < min(most, len(log_ratios)):
        scores = {
            number: torch.stack([log_ratios[one] for one in (*chosen, number)]).logsumexp(0).mean()
            - math.log(len(chosen) + 1)
            for number in range(len(log_ratios))
            if number not in chosen
        }
        best = max(scores, key=lambda number: scores[number].item())
        if chosen and scores[best].item() < reached + _LEAST_GAIN:
            break
        chosen.append(best)
        reached = scores[best].item()
    return chosen


def folds(simulations: Simulations, seed: int) -> list[Split]:
    """Return the simulations split five times, each with another fifth (whole groups) held out."""
    ids = simulations.groups.unique()
    order = ids[torch.randperm(len(ids), generator=generator(seed, "folds"))]
    splits = []
    for part in order.tensor_split(_FOLDS):
        held_out = torch.isin(simulations.groups, part)
        splits.append(
            Split(simulations[(~held_out).nonzero()[:, 0]], simulations[held_out.nonzero()[:, 0]])
        )
    return splits


class Search:
    """The runs of a fit whose length is to be found.

    Args:
        call: what all runs share.
        settings: of the fit.
        splits: the simulations; plans are compared on the first split, and the best is run on all.
        members: how many models were asked for: one may be several runs that do better together
            where they share their held-out pairs.
    """

    def __init__(
        self, call: Call, settings: FitSettings, splits: Sequence[Split], members: int
    ) -> None:
        # Further members may be added later, but one model is chosen in another way.
        shared = {"splits": len(splits), "one model": members == 1}
        self.call = replace(call, fingerprint=call.fingerprint | shared)
        self.settings = settings
        self.splits = splits
        self.members = members
        groups = [splits[0].train.groups, splits[0].held_out.groups]
        self.simulations = len(torch.cat(groups).unique())
        seen = next(fixed_views(call.views, take(splits[0].train.y, slice(1))))
        self.vectors = seen.ndim == _VECTOR_AXES and call.networks.encoder in (None, "vector")
        self.places = have_places(seen.shape[1:], call.networks.encoder)
        self._finished: list[Finished] = []
        self._diverged: DivergedError | None = None
        self._runs = 0

    def plans(self) -> list[Plan]:
        """Return what there is to try."""
        starts = [self.settings.start] if self.settings.start else ["linear", "random"]
        if self.settings.start is None and not self._can_start_linear():
            starts = ["random"]
        repulsions = ["encoder", "both"]
        if self.settings.repulsion:
            repulsions = [self.settings.repulsion]
        elif self.settings.loss == "y_phi":
            # L_ΦY has no part in it.
            repulsions = ["both"]
        plans = [Plan(start, repulsion) for start in starts for repulsion in repulsions]
        never = Plan("linear", "both" if self.simulations < MANY else "encoder")
        plans = [plan for plan in plans if len(plans) < _ALL_PLANS or plan != never]
        if self.settings.inputs is not None:
            return [plan._replace(inputs=self.settings.inputs) for plan in plans]
        inputs = "all" if self.call.networks.warm_start is not None else self._inputs()
        if inputs == "all":
            return plans
        return [*(plan._replace(inputs=inputs) for plan in plans), plans[-1]]

    def _can_start_linear(self) -> bool:
        return self.call.networks.warm_start is None and can_start_linear(self._first_model)

    def _inputs(self) -> str:
        """Return what is to be seen of data of which most tells nothing."""
        given = (self._first_model, self.splits[0].train, self.call.views)
        if self.vectors and few_tell(telling_weights(*given)):
            return "telling"
        if self.places and not places_tell(*given):
            return "stationary"
        return "all"

    @cached_property
    def _first_model(self) -> EmbedAndEmulate:
        """A model before its first step."""
        run = Run(self.call, self.splits[0], self._settings_of(Plan("random", "both"), 1))
        return run.begin().model.cpu()

    def find(self) -> Found:
        """Find the plan and its length; a search that has ended before is read from its file."""
        known = self._read()
        if known is not None:
            return known
        budget, most = self.settings.steps_of_search(self.simulations)
        found = find_schedule(self._first, self.plans(), _FIRST_STEPS, budget, most)
        if not found.trials:
            assert self._diverged is not None
            raise self._diverged
        ratios = [one.log_ratios for one in self._finished]
        found = replace(found, chosen=choose_together(ratios, self._most_chosen()))
        self._write(found)
        return found

    def _most_chosen(self) -> int:
        """Return how many runs may be one model: they must share their held-out pairs."""
        return _TOGETHER if self.members == 1 and len(self.splits) == 1 else 1

    def models(self, found: Found) -> list[Finished]:
        """Return the chosen models; of several splits, or members, the best run on or in each."""
        made = []
        for number in found.chosen:
            trial = found.trials[number]
            known = self._finished[number] if self._finished else None
            made.append(known or self._trial(trial.plan, trial.steps, 0))
        best = found.best
        until = min(best.steps, int(_TIMES_BEST * best.best_step) + _STEPS_PAST_BEST)
        for number in range(1, max(self.members, len(self.splits))):
            made.append(self._trial(best.plan, best.steps, number, until))
        for one in made:
            one.model.tried = [asdict(trial) for trial in found.trials]
        return made

    def _first(self, plan: Plan, steps: int) -> Trial | None:
        """Train on the first split; the model is kept until all are compared."""
        try:
            self._finished.append(self._trial(plan, steps, 0))
        except DivergedError as error:
            self._diverged = error
            return None
        return self._finished[-1].trial

    def _settings_of(self, plan: Plan, steps: int, number: int = 0) -> FitSettings:
        seed = self.settings.seed
        return replace(
            self.settings.resolved(self.simulations, vectors=self.vectors),
            start=plan.start,
            repulsion=plan.repulsion,
            inputs=plan.inputs,
            epochs=steps,
            steps_per_epoch=1,
            max_steps=None,
            seed=seed if number == 0 else derive_seed(seed, "member", number),
        )

    def _trial(self, plan: Plan, steps: int, number: int, until: int | None = None) -> Finished:
        """Train by a plan on the split of that number, or the only one.

        Args:
            plan: what to try.
            steps: over which the learning rate decays.
            number: of the split, and of the random numbers.
            until: the step to end at; None for the last.
        """
        name = f"{plan.name}-{steps}-{number}"
        settings = self._settings_of(plan, steps, number)
        call = replace(
            self.call,
            fingerprint=self.call.fingerprint | {"run": name},
            callback=tagged(self.call.callback, run=self._runs),
            tracked=self._tracked(f"{plan}, {steps} steps"),
        )
        self._runs += 1
        split = self.splits[number % len(self.splits)]
        run = Run(
            call,
            split,
            settings,
            # Folds differ by what they see: a given encoder begins as it is in all of them.
            number=number if len(self.splits) == 1 else 0,
            schedule=Schedule(steps, steps, None),
            files=_ALL_PLANS + max(self.members, len(self.splits)),
        )
        state = run.begin()
        label = f"{plan}, {steps} steps"
        if number > 0:
            label = f"member {number + 1}: {label}"
        run.loop.run(state, steps if until is None else until, name, label)
        model = run.finished(state)
        with doing(call.bar, "scoring on held-out pairs"):
            log_ratios = held_out_log_ratios(model, run.held_out.some(_COMPARED), settings.seed)
        trial = Trial(
            *plan,
            steps,
            score=log_ratios.mean().item(),
            error=standard_error(log_ratios),
            best_step=int(state.best_epoch),
        )
        return Finished(model, trial, log_ratios)

    def _tracked(self, what: str) -> Tracked | None:
        """Return what tells a tracker of the next run, and tell what it is."""
        if self.call.tracked is None:
            return None
        tracked = self.call.tracked.of("run", self._runs)
        tracked.settings({"plan": what})
        return tracked

    # The file of a search: what was tried, so that none of it has to be done again.

    def _read(self) -> Found | None:
        path = None if self.call.folder is None else self.call.folder / _FILE
        if path is None or not (path.exists() or path.is_symlink()):
            return None
        document, _ = read_tensors(path, "search", lambda document, shapes: None)
        known = as_document(path, document, _Document)
        check_count(f"{path}: format", known.format, _FORMAT, at_most=_FORMAT)
        check_same(
            path,
            self.call.fingerprint,
            known.fingerprint,
            what="a search of this very fit",
            remedy=OF_ANOTHER_CALL,
        )
        check_count(f"{path}: chosen runs", len(known.found.chosen), 1, self._most_chosen())
        plans = self.plans()
        lengths = self._lengths()
        for trial in known.found.trials:
            if trial.plan not in plans or trial.steps not in lengths:
                raise InputError(
                    f"{path}: expected runs of this very fit, got one of {trial.steps} steps, "
                    f"{trial.plan}; delete it to begin anew"
                )
        return known.found

    def _lengths(self) -> list[int]:
        """Return the lengths that runs may have."""
        _, most = self.settings.steps_of_search(self.simulations)
        lengths = [_FIRST_STEPS]
        while lengths[-1] < most:
            lengths.append(_TIMES_LONGER * lengths[-1])
        return lengths

    def _write(self, found: Found) -> None:
        if self.call.folder is None:
            return
        document = _Document(self.call.fingerprint, found)
        scores = torch.tensor([trial.score for trial in found.trials])
        write_tensors(self.call.folder / _FILE, "search", as_json(document), {"scores": scores})
        for number, trial in enumerate(found.trials):
            if number not in found.chosen:
                name = f"{trial.plan.name}-{trial.steps}-0.safetensors"
                (self.call.folder / name).unlink(missing_ok=True)


_FILE = "search.safetensors"
_FORMAT = 1


@dataclass
class _Document:
    """The document of a search's file."""

    fingerprint: dict[str, Any]
    found: Found
    format: int = _FORMAT

    def __post_init__(self) -> None:
        """Refuse what no search comes to."""
        trials = self.found.trials
        check_count("number of runs", len(trials), 1)
        for trial in trials:
            check_choice("start", trial.start, ("linear", "random"))
            check_choice("repulsion", trial.repulsion, ("both", "encoder"))
            check_choice("inputs", trial.inputs, INPUTS)
            check_count("steps", trial.steps, 1, at_most=_MOST_STEPS)
            check_count("best_step", trial.best_step, 0, at_most=trial.steps)
            check_number("score", trial.score)
        chosen = self.found.chosen
        check_count("number of chosen runs", len(chosen), 1, at_most=_TOGETHER)
        if len(set(chosen)) < len(chosen):
            raise InputError(f"chosen: expected different runs, got {chosen}")
        for number in chosen:
            check_count("chosen", number, 0, at_most=len(trials) - 1)


def standard_error(log_ratios: Tensor) -> float:
    """Return the standard error of a mean, infinite for a single number."""
    if len(log_ratios) < 2:
        return math.inf
    return log_ratios.std().item() / len(log_ratios) ** 0.5
