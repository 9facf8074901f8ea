"""Which sampler: the one that is named, or the one of this rule.

1. Acceptance–rejection of prior draws, which is exact, if the prior has no density, or if the
   bank's prior draws promise at most a hundred thousand proposals and more than three of them would
   be accepted themselves.
2. Proposals of a guide, if that comes near the posterior.
3. Tempering otherwise.

What prior draws promise may be wrong, where a mode was missed. So their budget is a little more
than four times the expected number, and the guide takes over beyond it.

A sampler is one function in one file of this folder, under the decorator :func:`sampler`.
"""

import inspect
import math
from functools import partial
from typing import Any

from torch import Tensor

from eande.foundations.checks import (
    InputError,
    calling,
    check_count,
    check_fits,
    check_seed,
    show,
)
from eande.inference.samplers.guided import Guided, guided
from eande.inference.samplers.known import find_sampler, known_samplers
from eande.inference.samplers.rejection import BudgetExceeded, acceptance_rejection
from eande.inference.samplers.tempered import tempered
from eande.inference.target import Sampler

# Use prior draws if at most so many are expected, about as many as a guide takes, and more than so
# many of the bank's would be accepted: an acceptance rate estimated from fewer is not reliable.
_MOST_PRIOR_DRAWS = 100_000
_FEWEST_ACCEPTED = 3.0
# The budget of proposals: a fixed part, and this many times the expected number.
_LEAST_BUDGET = 100_000
_TIMES_EXPECTED = 4


def draw(
    target: Guided, n: int, *, seed: int, sampler: str | Sampler | None, options: dict[str, Any]
) -> tuple[Tensor, Any]:
    """Draw ``n`` samples by the named sampler or by the rule above."""
    check_count("n", n, 1)
    check_seed("seed", seed)
    check_fits("n", n, 4 * target.prior.dimension)
    if isinstance(sampler, str):
        named = find_sampler(sampler)
        _check_options(sampler, named, options)
        return named(target, n, seed=seed, **options)
    if sampler is not None:
        if not callable(sampler):
            raise InputError(
                "sampler: expected a name or a function of (posterior, n, seed=...), got "
                f"{show(sampler)}"
            )
        call = partial(sampler, target, n, seed=seed, **options)
        with calling("sampler", call, n=n, seed=seed, options=options):
            return call()
    _refuse_unnamed(options)
    if not target.prior.has_density:
        return acceptance_rejection(target, n, seed=seed, **options)
    scores = target.bank_scores().double()
    acceptance_rate = (scores - scores.max()).exp().mean().item()
    expected = n / acceptance_rate
    accepted_draws = acceptance_rate * len(target.bank.phi)
    if expected <= _MOST_PRIOR_DRAWS and accepted_draws > _FEWEST_ACCEPTED:
        budget = {"max_evaluations": _LEAST_BUDGET + math.ceil(_TIMES_EXPECTED * expected)}
        try:
            return acceptance_rejection(target, n, seed=seed, **budget | options)
        except BudgetExceeded:
            if options:
                raise
    near = target.bank.proposable and target.guide.reliable
    chosen = guided if near else tempered
    return chosen(target, n, seed=seed, **options)


def _check_options(name: str, sampler: Sampler, options: dict[str, Any]) -> None:
    """Refuse options that the named sampler does not have."""
    known = set(inspect.signature(sampler).parameters) - {"seed"}
    for option in options:
        if option not in known:
            raise InputError(f"{option}: expected an option of sampler={name!r}, got another's")


def _refuse_unnamed(options: dict[str, Any]) -> None:
    """Refuse options of a single sampler where none was named, and name that sampler."""
    for name in set(options) - {"max_evaluations"}:
        owners = [
            owner
            for owner, function in known_samplers().items()
            if name in inspect.signature(function).parameters
        ]
        if owners:
            raise InputError(
                f"{name}: expected sampler={owners[0]!r} with it, got no sampler: it is an option "
                "of that one"
            )
        raise InputError(f"sample: expected no option {name!r}")
