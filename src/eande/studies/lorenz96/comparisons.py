"""The comparisons of the Lorenz 96 study: rows, each a recipe under terms, and how often they run.

paper       the paper's method and the baselines as the paper has them
selection   the same, their weights selected by the paper's own score
best        every method at its best, the ring turned for all
calibrated  the same with one exponent each, found by cross-fitting
weights     λ, the weight of L_YY
losses      L_sym against L_ΦY and L_YΦ alone, at three temperatures
bank        the memory bank against the whole batch
ladder      from the paper's method to ours, one step at a time
removed     ours, without one of its parts
efficiency  how good a method is with how many simulations

What a method may search over was searched before (:mod:`eande.studies.lorenz96.search`), on seeds
that no comparison uses, and is read from the file of that search: the rows of a comparison are
frozen before its test data are looked at.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from eande.studies.lorenz96.recipes import EANDE, LEARNED, OURS, SMALL_PRINT, Recipe
from eande.studies.lorenz96.terms import Terms

SYSTEMS = (10.0, 1.0)
# As the paper has it: nothing turned; what all methods gain from; and the paper's selection, Σ q̂,
# which few sure data decide: a flow that over-fits is selected late by it.
PLAIN = Terms()
TURNED = Terms(turned=True)
BY_DENSITY = Terms(select_by="density")
_BY_DENSITY = ", by Σ q̂"
# What the paper says of its baselines, and what it does not mention is left out.
PAPER_BASELINE = {
    "learning_rate": 1e-4,
    "warmup": 0.0,
    "decayed": "all",
    "gradient_clip": None,
    "ema": None,
}
PAPER_EPOCHS = 4_000

# By kind of method, terms of the search and the system: the recipe that won.
Winner = Callable[[str, float], Recipe]


@dataclass(frozen=True)
class Row:
    """A method under the terms of its comparison.

    Args:
        recipe: how it is trained.
        terms: what it gets.
    """

    recipe: Recipe
    terms: Terms


Rows = dict[str, Row]


@dataclass(frozen=True)
class Comparison:
    """Some rows, and how often they are run.

    Args:
        rows: of a system, b, given what the search found.
        size: of its results; ``"toy"`` and ``"smoke"`` may stand for it.
        systems: of which it has rows.
        seeds: of simulations and networks.
        told: what differs between the terms of its rows, for the page; empty where nothing does.
        differs: the names of those terms.
    """

    rows: Callable[[Winner, float], Rows]
    size: str
    systems: tuple[float, ...]
    seeds: int
    told: str = ""
    differs: tuple[str, ...] = ()


def _paper(winner: Winner, b: float) -> Rows:
    return _as_printed(winner, replace(PLAIN, b=b), "")


def _selection(winner: Winner, b: float) -> Rows:
    return _as_printed(winner, replace(BY_DENSITY, b=b), _BY_DENSITY)


def _as_printed(winner: Winner, terms: Terms, searched: str) -> Rows:
    """Return the paper's method and baselines, their settings searched under these terms."""
    b = terms.b
    return {
        "E&E (the paper's)": Row(winner(f"paper{searched}", b), terms),
        "NRE-C (the paper's)": Row(_as_long(winner(f"nre-c as printed{searched}", b)), terms),
        "NPE-C (the paper's)": Row(_as_long(Recipe("npe-c", 1, PAPER_BASELINE)), terms),
    }


def _as_long(recipe: Recipe) -> Recipe:
    """Return a baseline's recipe with the paper's number of epochs of its batches."""
    batch_size = recipe.settings.get("batch_size", PLAIN.simulations)
    return recipe.changed(steps=PAPER_EPOCHS * math.ceil(PLAIN.simulations / batch_size))


def _best(winner: Winner, b: float) -> Rows:
    terms = replace(TURNED, b=b)
    ours = winner("ours", b)
    return {
        "E&E (the paper's)": Row(winner("paper, turned", b), terms),
        "E&E": Row(ours, terms),
        "E&E, three": Row(ours.changed(members=3), terms),
        "NRE-C": Row(winner("nre-c", b), terms),
        "NPE-C": Row(winner("npe-c", b), terms),
        "critic": Row(winner("critic", b), terms),
    }


def _calibrated(winner: Winner, b: float) -> Rows:
    terms = replace(TURNED, b=b, calibration="cross-fitted")
    methods = {
        "E&E (the paper's)": "paper, turned",
        "E&E": "ours",
        "NRE-C": "nre-c",
        "NPE-C": "npe-c",
    }
    rows = {name: Row(winner(kind, b), terms) for name, kind in methods.items()}
    fresh = replace(terms, calibration="fresh")
    return rows | {"E&E, 500 simulations more": Row(winner("ours", b), fresh)}


def _weights(winner: Winner, b: float) -> Rows:
    paper = winner("paper", b)
    terms = replace(PLAIN, b=b)
    return {
        f"λ = {weight:g}": Row(paper.changed(view_weight=weight), terms)
        for weight in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    }


def _losses(winner: Winner, b: float) -> Rows:
    paper = winner("paper", b).changed(view_weight=0.0)
    terms = replace(PLAIN, b=b)
    losses = {"L_sym": "symmetric", "L_ΦY": "phi_y", "L_YΦ": "y_phi"}
    return {
        f"{name}, τ = {temperature:g}": Row(
            paper.changed(loss=loss, temperature=temperature), terms
        )
        for temperature in (0.01, 0.03, 0.1)
        for name, loss in losses.items()
    }


def _bank(winner: Winner, b: float) -> Rows:
    paper = winner("paper", b).changed(view_weight=0.0)
    terms = replace(PLAIN, b=b)
    rows = {"batch 500": Row(paper, terms)}
    for batch in (40, 120):
        # As many passes over the simulations: more steps, of fewer pairs.
        steps = paper.steps * math.ceil(terms.simulations / batch)
        smaller = paper.changed(batch_size=batch, steps=steps)
        rows[f"batch {batch}"] = Row(smaller, terms)
        rows[f"batch {batch} and a bank"] = Row(smaller.changed(candidates=500), terms)
    return rows


# From the paper's method to ours, in this order: what changes in the recipe and in the terms.
STEPS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "moving average": ({"ema": OURS["ema"]}, {}),
    "warm-up, clipping, skip": (SMALL_PRINT, {}),
    "ring turned": ({}, {"turned": True}),
    "τ learned, λ = 0": ({"temperature": LEARNED, "view_weight": 0.0}, {}),
    "repulsion stopped": ({"repulsion": OURS["repulsion"]}, {}),
    "even design": ({}, {"design": "even"}),
}


def _ladder(winner: Winner, b: float) -> Rows:
    paper = winner("paper", b)
    recipe = paper.changed(steps=2_000)
    terms = replace(PLAIN, b=b)
    rows = {"2,000 epochs": Row(recipe, terms)}
    recipe = paper
    rows["schedule"] = Row(recipe, terms)
    for name, (settings, changes) in STEPS.items():
        recipe = recipe.changed(**settings)
        terms = replace(terms, **changes)  # type: ignore[arg-type]
        rows[name] = Row(recipe, terms)
    # As long as ours wants to be, which is not as long as the paper's.
    recipe = recipe.changed(steps=winner("ours", b).steps)
    rows["its own schedule"] = Row(recipe, terms)
    rows["three members"] = Row(recipe.changed(members=3), terms)
    return rows


def _removed(winner: Winner, b: float) -> Rows:
    paper = winner("paper", b)
    ours = winner("ours", b)
    full = replace(TURNED, b=b, design="even")
    rows = {"all": Row(ours, full)}
    for name, (settings, changes) in STEPS.items():
        back = {key: paper_setting(paper, key) for key in settings}
        before = {key: getattr(PLAIN, key) for key in changes}
        rows[f"without: {name}"] = Row(
            ours.changed(**back),
            replace(full, **before),
        )
    return rows


def paper_setting(paper: Recipe, name: str) -> object:
    """Return a setting of the paper's method: what was searched, or what the paper has."""
    as_printed: dict[str, object] = {
        "ema": None,
        "warmup": 0.0,
        "gradient_clip": None,
        "decayed": "all",
        "linear_skip": False,
        "activation": "relu",
        "repulsion": "both",
    }
    return paper.settings[name] if name in paper.settings else as_printed[name]


# Simulations of the efficiency study.
NUMBERS = (250, 500, 1_000, 2_000)


def _efficiency(winner: Winner, b: float) -> Rows:
    rows = {}
    for number in NUMBERS:
        terms = replace(TURNED, b=b, simulations=number, validation=max(20, number // 10))
        many = "" if number < NUMBERS[2] else " at 2000"
        for name, kind in (
            ("E&E (the paper's)", "paper, turned"),
            ("E&E", "ours"),
            ("NRE-C", "nre-c"),
            ("NPE-C", "npe-c"),
        ):
            rows[f"{name}, {number}"] = Row(winner(kind + many, b), terms)
    return rows


COMPARISONS = {
    "paper": Comparison(_paper, "paper", SYSTEMS, 5),
    "selection": Comparison(_selection, "paper", SYSTEMS, 5),
    "best": Comparison(_best, "paper", SYSTEMS, 5),
    "calibrated": Comparison(
        _calibrated,
        "small",
        SYSTEMS,
        5,
        "the one row that says so, with further simulations",
        ("calibration",),
    ),
    "weights": Comparison(_weights, "small", SYSTEMS, 8),
    "losses": Comparison(_losses, "small", SYSTEMS, 8),
    "bank": Comparison(_bank, "small", SYSTEMS[:1], 8),
    "ladder": Comparison(
        _ladder,
        "small",
        SYSTEMS,
        5,
        "from the row named so on: the ring turned, an even design",
        ("turned", "design"),
    ),
    "removed": Comparison(
        _removed,
        "small",
        SYSTEMS,
        5,
        "the rows without them: the ring turned, an even design",
        ("turned", "design"),
    ),
    "efficiency": Comparison(
        _efficiency,
        "small",
        SYSTEMS[:1],
        5,
        "the number of simulations, in the name of each row",
        ("simulations", "validation"),
    ),
}


def row_names(name: str, b: float) -> list[str]:
    """Return the names of a comparison's rows, in their order."""
    return list(COMPARISONS[name].rows(lambda kind, _: searched_kinds()[kind].start, b))


@dataclass(frozen=True)
class Searched:
    """What is searched.

    Args:
        start: where the search starts.
        terms: under which it searches.
        judged_by: what it chooses by, of the simulations held out: ``"log_ratio"``, the largest, or
            ``"mmd2"``, the smallest median of MMD² to the reference.
    """

    start: Recipe
    terms: Terms
    judged_by: str = "log_ratio"


def searched_kinds() -> dict[str, Searched]:
    """Return what is searched, by name.

    What is compared as printed is judged by what the paper's table is about, MMD².
    """
    nre_c = Recipe("nre-c", 1_200, {"gamma": 0.1, "classes": 4, "batch_size": 500})
    npe_c = Recipe("npe-c", 2_400, {"learning_rate": 1e-3, "batch_size": 125})
    paper = Recipe(
        EANDE, 600, {"temperature": 0.03, "view_weight": 0.2, "embedding_dimension": 128}
    )
    ours = Recipe(EANDE, 1_200, OURS)
    # The search takes a fifth of the paper's time; the comparison all of it.
    as_printed = Recipe(
        "nre-c", PAPER_EPOCHS, PAPER_BASELINE | {"gamma": 0.1, "classes": 8, "batch_size": 120}
    )
    turned_many = replace(TURNED, simulations=2_000, validation=200)
    return {
        "paper": Searched(paper, PLAIN, "mmd2"),
        "nre-c as printed": Searched(as_printed, PLAIN, "mmd2"),
        f"paper{_BY_DENSITY}": Searched(paper, BY_DENSITY, "mmd2"),
        f"nre-c as printed{_BY_DENSITY}": Searched(as_printed, BY_DENSITY, "mmd2"),
        "paper, turned": Searched(paper, TURNED),
        "ours": Searched(ours, TURNED),
        "nre-c": Searched(nre_c, TURNED),
        "npe-c": Searched(npe_c, TURNED),
        "critic": Searched(Recipe("critic", 1_200, {"batch_size": 500}), TURNED),
        "paper, turned at 2000": Searched(paper, turned_many),
        "ours at 2000": Searched(ours, turned_many),
        "nre-c at 2000": Searched(nre_c, turned_many),
        "npe-c at 2000": Searched(npe_c, turned_many),
    }
