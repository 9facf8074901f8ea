"""The search of the Lorenz 96 study: settings of every method, on seeds that no comparison uses.

A method starts from its recipe, and one setting after the other takes the value with the best
held-out score. A first seed tries all values; a second one those that did best, and the mean of the
two decides. All runs are kept in ``lorenz96-search.json``; the winner of a method is the recipe of
the best mean among those run with both seeds, and there is none before the search has ended. The
score is the mean log ratio of the pairs held out, or MMD² to the reference of the simulations held
out. Both are of every run on file, and the paper's own score, Σ q̂, too.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from eande.foundations.checks import InputError
from eande.studies.lorenz96.comparisons import searched_kinds
from eande.studies.lorenz96.recipes import Recipe
from eande.studies.lorenz96.sizes import SIZES, Size
from eande.studies.lorenz96.tables import recipe_of, size_of

# Not among the seeds of comparisons, which count from 0.
SEEDS = (1_000, 1_001)
# Of the values of a setting, those that a second seed tries.
_KEPT = 2

Stages = Sequence[tuple[str, Sequence[Any]]]
_LENGTHS = (300, 600, 1_200, 2_000, 4_000)
# The paper's baseline: its length is the paper's.
_AS_PRINTED: Stages = [("gamma", (1e-4, 1e-3, 1e-2, 1e-1)), ("classes", (4, 8, 12, 16))]
# The paper's ranges and beyond.
STAGES: dict[str, Stages] = {
    "paper": [
        ("temperature", (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)),
        ("steps", (150, 300, 600, 1_200, 2_000)),
        ("view_weight", (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
        ("embedding_dimension", (128, 256, 512)),
        ("temperature", (1e-2, 3e-2, 1e-1)),
    ],
    "paper, turned": [
        ("temperature", (1e-2, 3e-2, 1e-1)),
        ("steps", _LENGTHS[:4]),
        ("view_weight", (0.0, 0.2, 0.6)),
    ],
    "ours": [("learning_rate", (1e-3, 3e-3)), ("steps", _LENGTHS)],
    "nre-c": [
        ("learning_rate", (3e-4, 1e-3, 3e-3)),
        ("gamma", (1e-3, 1e-2, 1e-1, 1.0)),
        ("classes", (4, 8, 16)),
        ("batch_size", (125, 500)),
        ("steps", _LENGTHS[1:]),
    ],
    "npe-c": [
        ("learning_rate", (3e-4, 1e-3, 3e-3)),
        ("network", ("zuko_nsf", "zuko_maf")),
        ("batch_size", (125, 500)),
        ("steps", (1_200, 2_400, 4_800)),
    ],
    "critic": [("learning_rate", (3e-4, 1e-3, 3e-3)), ("steps", _LENGTHS[1:4])],
    "nre-c as printed": _AS_PRINTED,
    "nre-c as printed, by Σ q̂": _AS_PRINTED,
    # The paper's batch is all simulations that it has: 500 of 2,000 are fewer negatives.
    "paper, turned at 2000": [
        ("batch_size", (500, 2_000)),
        ("temperature", (1e-2, 3e-2, 1e-1)),
        ("steps", (600, 2_000, 4_000)),
    ],
    "ours at 2000": [
        ("batch_size", (500, 2_000)),
        ("learning_rate", (1e-3, 3e-3)),
        ("steps", _LENGTHS[1:]),
    ],
    "nre-c at 2000": [("steps", _LENGTHS[1:])],
    "npe-c at 2000": [("steps", (2_400, 4_800, 9_600))],
}

# With the large encoder, which takes ten times as long. What is not in it has the settings found
# with the small one.
LARGE_STAGES: dict[str, Stages] = {
    "paper": [
        ("steps", (300,)),
        ("temperature", (3e-2, 1e-1)),
        ("steps", (150, 300, 600)),
    ],
    "paper, by Σ q̂": [
        ("steps", (300,)),
        ("view_weight", (0.0, 0.2, 0.6)),
        ("temperature", (1e-2, 3e-2, 1e-1)),
        ("steps", (150, 300, 600)),
    ],
    "ours": [("steps", _LENGTHS[1:4])],
    "nre-c": [("steps", _LENGTHS[1:4])],
    "npe-c": [("steps", (1_200, 2_400, 4_800))],
    "critic": [("steps", _LENGTHS[1:4])],
}

Run = Mapping[str, Any]


def _mmd2(run: Run) -> float:
    """Return minus the median MMD² of all samples; a run that failed is the worst."""
    if run.get("failed"):
        return -math.inf
    return -float(run["medians"][f"mmd2_0.05_{size_of(run).samples}"])


# What a search chooses by: the more, the better.
JUDGES: dict[str, Callable[[Run], float]] = {
    "log_ratio": lambda run: float(run["score"]),
    "mmd2": _mmd2,
}


def same_recipe(run: Run, recipe: Recipe) -> bool:
    """Return whether a run was made by that recipe."""
    return recipe_of(run) == recipe


class Trials:
    """The runs of one search: those of a method for a system at a size.

    Args:
        start: the recipe that it starts from.
        stages: the values of settings that are tried, one setting after the other.
        runs: of that method, system and size.
        judged_by: one of ``JUDGES``.
    """

    def __init__(
        self, start: Recipe, stages: Stages, runs: Sequence[Run], judged_by: str = "log_ratio"
    ) -> None:
        self.start = start
        self.stages = stages
        self.runs = runs
        self.judged_by = judged_by

    def score(self, recipe: Recipe, seed: int) -> float | None:
        """Return the held-out score of a recipe, None where it was not run."""
        for run in self.runs:
            if run["seed"] == seed and same_recipe(run, recipe):
                return JUDGES[self.judged_by](run)
        return None

    def missing(self) -> list[tuple[Recipe, int]]:
        """Return the runs to make next, none where the search has ended.

        They are those of a whole stage with the first seed, or of its best with the second.
        """
        recipe = self.start
        for name, values in self.stages:
            tried = [recipe.changed(**{name: value}) for value in values]
            first = {one: self.score(tried[one], SEEDS[0]) for one in range(len(tried))}
            left = [(tried[one], SEEDS[0]) for one, score in first.items() if score is None]
            if left:
                return left
            ranked = sorted(first, key=lambda one: cast(float, first[one]), reverse=True)[:_KEPT]
            left = [
                (tried[one], SEEDS[1]) for one in ranked if self.score(tried[one], SEEDS[1]) is None
            ]
            if left:
                return left
            recipe = max((tried[one] for one in ranked), key=self.mean)
        return []

    def mean(self, recipe: Recipe) -> float:
        """Return the mean score of a recipe over both seeds."""
        scores = [self.score(recipe, seed) for seed in SEEDS]
        return sum(score for score in scores if score is not None) / len(SEEDS)

    def best(self) -> Recipe | None:
        """Return the recipe with the best mean among those run with both seeds, None where none."""
        both = []
        for run in self.runs:
            if run["seed"] == SEEDS[0]:
                recipe = recipe_of(run)
                if self.score(recipe, SEEDS[1]) is not None:
                    both.append(recipe)
        return max(both, key=self.mean, default=None)

    def winner(self) -> Recipe | None:
        """Return what the search has found, None before it has ended."""
        return None if self.missing() else self.best()


def stages_of(size: Size) -> Mapping[str, Stages]:
    """Return the stages of all searches at a size, by what they search."""
    return LARGE_STAGES if size == SIZES["paper"] else STAGES


def trials(runs: Iterable[Run], kind: str, b: float, size: Size) -> Trials:
    """Return the trials of one search among the runs of a file.

    Args:
        runs: of ``lorenz96-search.json``.
        kind: of what :func:`~eande.studies.lorenz96.comparisons.searched_kinds` has.
        b: of the system.
        size: of the networks.
    """
    own = [run for run in runs if run["method"] == kind and run["b"] == b and size_of(run) == size]
    searched = searched_kinds()[kind]
    return Trials(searched.start, stages_of(size).get(kind, ()), own, searched.judged_by)


def winner(runs: Sequence[Run], kind: str, b: float, size: Size) -> Recipe:
    """Return the recipe that a search has found.

    A method is searched at the size of its comparison, or with the small encoder where there is no
    such search; sizes of tests begin without any.

    Args:
        runs: of ``lorenz96-search.json``.
        kind: of what :func:`~eande.studies.lorenz96.comparisons.searched_kinds` has.
        b: of the system.
        size: of the comparison.
    """
    if size in (SIZES["toy"], SIZES["smoke"]):
        own = trials(runs, kind, b, size)
        return own.winner() or own.start
    searched = size if kind in stages_of(size) else SIZES["small"]
    found = trials(runs, kind, b, searched).winner()
    if found is None:
        name = "paper" if searched == SIZES["paper"] else "small"
        raise InputError(
            f"output: expected a folder with the search of {kind} for b = {b:g}, size {name}, "
            "lorenz96-search.json, got none that has ended; run --only search first"
        )
    return found
