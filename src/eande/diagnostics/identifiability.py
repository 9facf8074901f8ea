r"""Identifiability: which parameters, and which combinations of them, the data can tell apart.

The model's own likelihood is p(y|φ) = p(y) e^{s(f(y), g(φ))} / (C(y) Z(φ)), so its Fisher
information needs no simulator and no derivative of the data:

    I(φ) = Cov[∇_φ s | φ],      for the inner product s = f·g/τ:   J^T Cov(f|φ) J / τ²,   J = ∂g/∂φ,

the covariance under p(y|φ): over a bank of embedded data with weights e^s / C. The same bank gives
the Kullback–Leibler divergence of any two parameters,

    KL(φ, φ') = E[s(φ) − s(φ') | φ] − log Z(φ) + log Z(φ'),

hence parameters far apart that no data distinguish.

Everything is per standard deviation of the prior: an eigenvalue λ of I shrinks the posterior's
standard deviation along its direction to about 1/√(1 + λ) of the prior's; well under 1, the data
say nothing there.
"""

import warnings
from dataclasses import dataclass

import torch
from rich.progress import track
from torch import Tensor

from eande.foundations.checks import (
    InputError,
    as_float_tensor,
    check_count,
    check_finite,
    check_fits,
    check_flag,
    check_seed,
    check_shape,
)
from eande.foundations.seeds import derive_seed
from eande.inference.held_out import check_held_out, embed_rows
from eande.inference.model import EmbedAndEmulate
from eande.inference.normalizer import estimate_normalizer
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.views import View

# Two parameters are far apart from this many standard deviations of the prior on,
_FAR = 1.0
# and equivalent under this divergence, in nats.
_ALIKE = 0.5
# A covariance needs an effective sample size of at least this many times D.
_DATA_PER_PARAMETER = 10
_DRAWS = 20_000
# A direction with a smaller eigenvalue counts as unknown: the posterior keeps at least 90 % of the
# prior's standard deviation along it.
_UNKNOWN = 0.23


@dataclass(frozen=True)
class Identifiability:
    """What the data can tell about the parameters, at points of the prior.

    Args:
        names: of the parameters.
        phi: the points (k, D).
        scale: the prior's standard deviations (D,).
        fisher: information per standard deviation of the prior (k, D, D).
        eigenvalues: of ``fisher``, stiffest first (k, D).
        directions: its eigenvectors, in standard deviations of the prior (k, D, D);
            ``directions[i, :, 0]`` is the stiffest at point i.
        effective_data: effective sample size of the data at each point (k,).
        divergence: KL(φ_i, φ_j) in nats (k, k): how much data from φ_i speak against φ_j.

    Example:
        >>> found = eande.identifiability(model, simulations, points=5, progress=False)
        >>> found.fisher.shape, found.eigenvalues.shape
        (torch.Size([5, 2, 2]), torch.Size([5, 2]))
        >>> slope, offset = found.parameter_information
        >>> bool(slope < offset)  # ten readings tell the offset better than the slope
        True
    """

    names: tuple[str, ...]
    phi: Tensor
    scale: Tensor
    fisher: Tensor
    eigenvalues: Tensor
    directions: Tensor
    effective_data: Tensor
    divergence: Tensor

    @property
    def known(self) -> Tensor:
        """Points where the effective sample size is enough for a covariance, (k,).

        Too few data look as if they said nothing: the other properties leave these points out.
        """
        return self.effective_data >= self._needed

    @property
    def unknown_directions(self) -> Tensor:
        """How many directions the data say nothing about, at each known point."""
        return (self.eigenvalues[self.known] < _UNKNOWN).sum(1)

    @property
    def parameter_information(self) -> Tensor:
        """The median information about each parameter when the others are unknown, (D,).

        It is per standard deviation of the prior.
        """
        # With the prior's own information, 1 per standard deviation: a parameter the data say
        # nothing about has information 0 and does not make the matrix singular.
        prior = torch.eye(len(self.scale), dtype=self.fisher.dtype)
        variance = torch.linalg.inv(self.fisher[self.known] + prior).diagonal(dim1=1, dim2=2)
        return (1 / variance - 1).quantile(0.5, 0)

    def equivalent(self) -> list[tuple[int, int]]:
        """Return pairs of known points far apart that no data tell apart, farthest first.

        Example:
            >>> eande.identifiability(model, simulations, points=5, progress=False).equivalent()
            []
        """
        points = self.phi.double() / torch.where(self.scale > 0, self.scale, 1.0)
        apart = torch.cdist(points, points)
        known = self.known.unsqueeze(0) & self.known.unsqueeze(1)
        alike = (self.divergence < _ALIKE) & (self.divergence.T < _ALIKE)
        pairs = (alike & (apart > _FAR) & known).triu(1).nonzero()
        order = apart[pairs[:, 0], pairs[:, 1]].argsort(descending=True)
        return [(int(i), int(j)) for i, j in pairs[order]]

    def __str__(self) -> str:
        """Return the findings in words."""
        points = len(self.phi)
        known = int(self.known.sum())
        few = (
            f"at {points - known} of {points} points the effective sample size of the data is "
            f"under {self._needed}"
        )
        if not known:
            return f"cannot tell: {few}. The model is too sharp for so few data: give more"
        information = ", ".join(
            f"{name} {value:.3g}"
            for name, value in zip(self.names, self.parameter_information.tolist(), strict=True)
        )
        median = self.eigenvalues[self.known].quantile(0.5, 0).tolist()
        stiff = " > ".join(f"{value:.3g}" for value in median)
        weakest = torch.linalg.eigh(self.fisher[self.known].mean(0)).eigenvectors[:, 0]
        sloppy = " ".join(
            f"{weight:+.2f}·{name}"
            for weight, name in zip(weakest.tolist(), self.names, strict=True)
        )
        unknown = f"{int(self.unknown_directions.median())} of {len(self.names)}"
        pairs = f"{len(self.equivalent())} of {known * (known - 1) // 2}"
        lines = [
            "information per parameter, others unknown (per prior standard deviation): "
            f"{information}",
            f"along the local directions, stiffest first: {stiff}",
            f"directions the data say nothing about, median over the prior: {unknown}",
            "least known combination, averaged over the prior (in prior standard deviations): "
            f"{sloppy}",
            f"pairs of parameters far apart that no data tell apart: {pairs}",
        ]
        if known < points:
            lines.insert(0, f"{few}; they are left out here: give more data")
        return "\n".join(lines)

    @property
    def _needed(self) -> int:
        """The effective sample size that a covariance needs."""
        return _DATA_PER_PARAMETER * len(self.names)


@torch.no_grad()
def identifiability(
    model: EmbedAndEmulate,
    simulations: Simulations,
    *,
    phi: object = None,
    points: int = 200,
    views: View | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Identifiability:
    """Compute the model's Fisher information and the divergence between parameters.

    No simulation is run. It is the model's view: what the encoder threw away, or what too few
    simulations could not teach it, counts as unknown. Near the edge of the prior, where data of
    parameters outside are missing from the bank, the information is under-estimated.

    Args:
        model: fitted.
        simulations: a bank of data from the prior; those it was trained on will do. The sharper
            the model, the more are needed.
        phi: points (k, D) to look at; draws of the prior by default.
        points: how many of them.
        views: what the encoder sees of a simulation, where the model was fitted with views; one
            fixed view of each is used.
        seed: of the draws.
        progress: whether to show a progress bar.

    Example:
        >>> found = identifiability(model, simulations, points=5, progress=False)
        >>> print(str(found).splitlines()[-1])
        pairs of parameters far apart that no data tell apart: 0 of ...
    """
    check_count("points", points, 2)
    check_fits("points", points, 8 * points)
    check_seed("seed", seed)
    check_flag("progress", progress)
    seen = check_held_out("simulations", model, simulations, views, one_per_group=False)
    chosen = _points(model, phi, points, seed)
    embedded = embed_rows(model, seen.y, progress=progress)
    bank = model.prior_bank(model.prior, _DRAWS)
    log_c = estimate_normalizer(model.similarity, embedded, bank).log_value
    scale = bank.phi.double().std(0)
    scores, slopes = _scores_and_slopes(model, embedded, chosen, progress=progress)
    log_joint = scores - log_c.unsqueeze(1)
    weights = log_joint.softmax(0)
    centred = slopes - (weights * slopes).sum(1, keepdim=True)
    covariance = torch.einsum("mk,dmk,emk->kde", weights, centred, centred)
    fisher = covariance * scale.unsqueeze(1) * scale
    values, vectors = torch.linalg.eigh(fisher)
    expected = weights.T @ scores
    log_z = log_joint.logsumexp(0)
    divergence = expected.diagonal().unsqueeze(1) - expected - log_z.unsqueeze(1) + log_z
    return Identifiability(
        names=model.prior.names,
        phi=chosen.cpu(),
        scale=scale.cpu(),
        fisher=fisher.cpu(),
        eigenvalues=values.flip(1).clamp(min=0).cpu(),
        directions=vectors.flip(2).cpu(),
        effective_data=(1 / weights.square().sum(0)).cpu(),
        divergence=divergence.cpu(),
    )


def _points(model: EmbedAndEmulate, phi: object, number: int, seed: int) -> Tensor:
    """Return the points to look at, on the model's device: those given, or prior draws."""
    if phi is None:
        phi = model.prior.sample(number, seed=derive_seed(seed, "points"))
    chosen = as_float_tensor("phi", phi, device=model.device)
    check_shape("phi", chosen, ("k", model.prior.dimension))
    check_count("number of points", len(chosen), 1)
    check_finite("phi", chosen)
    outside = int((~model.prior.contains(chosen)).sum())
    if outside:
        raise InputError(
            "phi: expected points inside the prior's support, "
            f"got {outside} of {len(chosen)} outside"
        )
    return chosen


def _scores_and_slopes(
    model: EmbedAndEmulate, embedded: Tensor, phi: Tensor, *, progress: bool
) -> tuple[Tensor, Tensor]:
    """Return the scores (m, k) of all data and points, and their derivatives (D, m, k)."""

    def score(phi: Tensor) -> Tensor:
        return model.similarity.score(embedded, model.emulate(phi))

    slopes = []
    axes = range(phi.shape[1])
    for d in track(axes, "differentiating", disable=not progress, transient=True):
        # A point's scores depend on that point alone: one pass differentiates all of them.
        direction = torch.zeros_like(phi)
        direction[:, d] = 1
        with warnings.catch_warnings():
            # torch.func warns of its own use of torch.jit.
            warnings.filterwarnings(
                "ignore", message=".*torch.jit.script", category=DeprecationWarning
            )
            values, slope = torch.func.jvp(score, (phi,), (direction,))[:2]
        slopes.append(slope.double())
    return values.double(), torch.stack(slopes)
