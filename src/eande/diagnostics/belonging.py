"""Does an observation belong to the simulations? A posterior of data unlike any that was simulated is sharp all the same.

Three scores, each high for strange data:

    image          how far the embedding lies from everything the emulator can produce
    activations    how far the datum's trace through the encoder (mean and spread of every channel of every layer) lies from those of
                   simulated data, relative to how far these lie from each other there
    summaries      the same for a few numbers of the raw datum: mean, spread, skewness, kurtosis, roughness along each axis

An embedding alone is blind to what the encoder learned to ignore; its first layers and the raw numbers are not. Every score is ranked among
those of held-out simulations, each scored by what the others look like, as the observation is. This makes a p-value that is right whatever the
score, and the smallest of three counts threefold: under a level α about a share α of genuine observations falls at most, up to the 1/(m + 1) that m
simulations can resolve.

Data may look like others that were simulated and still not like those of their own posterior: :func:`predictive_check` ranks an observation
among simulations of its posterior's samples.

References:
    Breunig et al., *LOF: identifying density-based local outliers*, 2000 (distances relative to the neighbours' own);
    Vovk, *Cross-conformal predictors*, 2015 (ranks among points scored by the others).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from eande.calibration.calibrate import check_pairs, first_of_groups
from eande.foundations.checks import (
    InputError,
    as_float_tensor,
    check_count,
    check_finite,
    check_shape,
)
from eande.inference.model import EmbedAndEmulate
from eande.inference.normalizer import folds
from eande.priors.draws import EmpiricalPrior
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.sources import take
from eande.simulation.read.views import View, fixed_views
from eande.simulation.run.blocks import Simulator
from eande.simulation.simulate import simulate

SCORES = ("image", "activations", "summaries")
_NEIGHBOURS = 5
_DRAWS = 20_000
_FEWEST = 100
# Distances to all simulated data are taken for so many points at a time.
_ROWS_AT_ONCE = 1_000
_TINY = 1e-12


@dataclass(frozen=True)
class Belonging:
    """How strange observations are.

    Args:
        p_value: of each observation (m,): under 0.01 for at most one in a hundred genuine ones.
        each: the p-value of each score, before they are combined (m,).
        resolution: the smallest p-value so many simulations allow.
    """

    p_value: Tensor
    each: dict[str, Tensor]
    resolution: float

    def __str__(self) -> str:
        """Return one line per observation."""
        lines = []
        for i, p in enumerate(self.p_value.tolist()):
            details = ", ".join(f"{name} {values[i]:.2g}" for name, values in self.each.items())
            word = (
                "UNLIKE the simulations"
                if p < 0.01
                else "unusual"
                if p < 0.05
                else "like the simulations"
            )
            if 0.01 <= p <= self.resolution:
                word = "STRANGER than all the simulations, too few to say more"
            lines.append(f"observation {i}: {word}, p = {p:.2g} ({details})")
        return "\n".join(lines)


class Belongs:
    """Knows what simulated data look like, and says of observations whether they do.

    What it cannot see: differences that neither the encoder's layers nor the summaries of the raw numbers respond to.

    Args:
        model: fitted.
        held_out: simulations the model was not trained on; their number limits the smallest p-value, three over it.

    Example:
        >>> Belongs(model, held_out)(y_observed)  # doctest: +SKIP
        observation 0: like the simulations, p = 0.62 (…)
    """

    def __init__(self, model: EmbedAndEmulate, held_out: Simulations) -> None:
        if not isinstance(held_out, Simulations):
            raise InputError(
                f"held_out: expected Simulations (from arrays: Simulations.from_arrays(phi, y)), got {type(held_out).__name__}"
            )
        check_pairs(model, held_out.phi, held_out.y, held_out.groups)
        # One of each group: data of the same parameters lie nearer to each other than an observation to any of them.
        first = first_of_groups(held_out.groups)
        if len(first) < _FEWEST:
            raise InputError(
                f"held_out: expected at least {_FEWEST} different parameters, got {len(first)}"
            )
        self.model, self._similarity = model, model.similarity
        image, activations, summaries = self._look(take(held_out.y, first))
        self._image = image
        self._crowds = {"activations": _Crowd(activations), "summaries": _Crowd(summaries)}

    @torch.no_grad()
    def __call__(self, y: Any) -> Belonging:
        """Rank observations (m, *y_shape), or one of shape y_shape."""
        if self.model.similarity is not self._similarity:
            raise InputError(
                "model: expected it as it was, got it calibrated since: make Belongs anew"
            )
        observed = as_float_tensor("y", y)
        if observed.ndim == len(self.model.y_shape):
            observed = observed.unsqueeze(0)
        check_shape("y", observed, ("m", *self.model.y_shape))
        check_count("number of observations", len(observed), 1)
        image, activations, summaries = self._look(observed)
        seen = {"activations": activations, "summaries": summaries}
        above = {"image": _above(self._image, image)} | {
            name: crowd.above(seen[name]) for name, crowd in self._crowds.items()
        }
        each = {
            name: (1 + number).double() / (len(self._image) + 1) for name, number in above.items()
        }
        smallest = torch.stack(list(each.values())).amin(0)
        return Belonging(
            (len(SCORES) * smallest).clamp(max=1), each, len(SCORES) / (len(self._image) + 1)
        )

    @torch.no_grad()
    def _look(self, y: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return the distance from the emulator's image (m,), the trace through the encoder and the summaries (m, …), on the CPU."""
        model = self.model
        bank = model.prior_bank(model.prior, _DRAWS)
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        for start in range(0, len(y), model.encoder_rows):
            part = as_float_tensor("y", y[start : start + model.encoder_rows], device=model.device)
            check_finite(f"y[{start}:{start + len(part)}]", part)
            with _traced(model.encoder, len(part)) as trace:
                embedded = model.embed(part)
            best = model.similarity.score(embedded, bank.emulated).amax(1)
            bound = model.similarity.bound(embedded)
            image = -best if bound is None else bound - best
            # Where no layer left a trace, the embedding itself.
            parts.append(
                (
                    image.double().cpu(),
                    torch.cat(trace or [embedded], dim=1).double().cpu(),
                    _summaries(part).cpu(),
                )
            )
        image, traces, summaries = (torch.cat(column) for column in zip(*parts, strict=True))
        return image, traces, summaries


def predictive_check(
    model: EmbedAndEmulate,
    y: Any,
    simulator: Simulator,
    *,
    n: int = 500,
    views: View | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Belonging:
    """Simulate anew with samples of an observation's posterior, and say whether the observation looks like the result.

    The observation is used twice, for the posterior and for the check, so it looks a little too much at home: small p-values mean what they say.

    Args:
        model: fitted.
        y: the observation, of the model's ``y_shape``.
        simulator: as for :func:`eande.simulate`.
        n: simulations.
        views: what the encoder sees of a simulation, where the model was fitted with views.
        seed: of samples and simulations.
        progress: whether to show a progress bar.
    """
    observed = as_float_tensor("y", y)
    check_shape("y", observed, model.y_shape)
    check_count("n", n, _FEWEST)
    samples = model.posterior(observed).sample(n, seed=seed)[0]
    # In one block: an empirical prior hands out each of its draws once before it repeats any.
    made = simulate(
        simulator, EmpiricalPrior(samples), n, seed=seed, block_size=n, progress=progress
    )
    if len(made) < _FEWEST:
        raise InputError(
            f"simulator: expected at least {_FEWEST} of {n} simulations to succeed, got {len(made)}; ask for more (n=)"
        )
    replicates = Simulations(
        made.phi, torch.cat(list(fixed_views(views, made.y))), torch.arange(len(made))
    )
    return Belongs(model, replicates)(observed)


class _Space:
    """Points of simulated data, standardised, with a score for others: distance to the neighbours over the neighbours' own."""

    def __init__(self, points: Tensor) -> None:
        self.mean, self.scale = points.mean(0), points.std(0)
        # What never varies in simulations must not vary in data either, but rounding may.
        self.scale = torch.where(
            self.scale > 1e-6 * self.mean.abs() + _TINY, self.scale, self.mean.abs().clamp(min=1.0)
        )
        self.points = self._place(points)
        parts = self.points.split(_ROWS_AT_ONCE)
        self.reach = torch.cat(
            [
                torch.cdist(part, self.points).kthvalue(_NEIGHBOURS + 1, dim=1).values
                for part in parts
            ]
        )

    def _place(self, points: Tensor) -> Tensor:
        return (points - self.mean) / self.scale

    def score(self, points: Tensor) -> Tensor:
        scores = []
        for part in self._place(points).split(_ROWS_AT_ONCE):
            nearest, which = torch.cdist(part, self.points).topk(_NEIGHBOURS, largest=False)
            scores.append(nearest[:, -1] / (self.reach[which].mean(1) + _TINY))
        return torch.cat(scores)


class _Crowd:
    """Simulated data in folds, each scored in a space made by the others: what helps to make a space looks at home in it."""

    def __init__(self, points: Tensor) -> None:
        fold = folds(torch.arange(len(points)))
        self.spaces = [_Space(points[fold != out]) for out in fold.unique()]
        self.own = [
            space.score(points[fold == out])
            for space, out in zip(self.spaces, fold.unique(), strict=True)
        ]

    def above(self, points: Tensor) -> Tensor:
        """Return how many simulated data are at least as strange as each point, (m,)."""
        return torch.stack(
            [
                _above(own, space.score(points))
                for space, own in zip(self.spaces, self.own, strict=True)
            ]
        ).sum(0)


@contextmanager
def _traced(network: nn.Module, rows: int) -> Iterator[list[Tensor]]:
    """Collect the mean and spread of every channel of every layer's output, for the one batch that passes inside the block.

    Layers that see the parts of a datum as a batch of their own, the members of a set for instance, are left out.
    """
    trace: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: Any, output: Any) -> None:
        if (
            isinstance(output, Tensor)
            and output.ndim > 1
            and output.is_floating_point()
            and len(output) == rows
        ):
            values = output.float()
            space = values.flatten(2) if output.ndim > 2 else None
            trace.append(
                values
                if space is None
                else torch.cat([space.mean(-1), space.std(-1, correction=0)], dim=1)
            )

    layers = [layer for layer in network.modules() if next(layer.children(), None) is None]
    handles = [layer.register_forward_hook(keep) for layer in layers]
    try:
        yield trace
    finally:
        for handle in handles:
            handle.remove()


def _summaries(y: Tensor) -> Tensor:
    """Return mean, log spread, skewness, log kurtosis, and log roughness along each axis, (m, 4 + axes)."""
    values = y.double()
    flat = values.flatten(1)
    spread = flat.std(1, correction=0) + _TINY
    centred = (flat - flat.mean(1, keepdim=True)) / spread.unsqueeze(1)
    columns = [
        flat.mean(1),
        spread.log(),
        centred.pow(3).mean(1),
        (centred.pow(4).mean(1) + _TINY).log(),
    ]
    for axis in range(1, values.ndim):
        if values.shape[axis] > 1:
            columns.append(
                (values.diff(dim=axis).flatten(1).square().mean(1).sqrt() + _TINY).log()
                - spread.log()
            )
    return torch.stack(columns, dim=1)


def _above(reference: Tensor, scores: Tensor) -> Tensor:
    """Return how many scores of the reference reach each of the others, (m,)."""
    return (reference >= scores.unsqueeze(1)).sum(1)
