r"""Identifiability: which parameters, and which combinations of them, the data can tell apart.

The model's own likelihood is p(y|φ) = p(y) e^{s(f(y), g(φ))} / (C(y) Z(φ)), so its Fisher information needs no simulator and no derivative of
the data:

    I(φ) = Cov[∇_φ s | φ],      for the inner product s = f·g/τ:   J^T Cov(f|φ) J / τ²,   J = ∂g/∂φ,

the covariance under p(y|φ): over a bank of embedded data with weights e^s / C. The same bank gives the Kullback–Leibler divergence of any two
parameters, KL(φ, φ') = E[s(φ) − s(φ') | φ] − log Z(φ) + log Z(φ'), hence parameters far apart that no data distinguish.

Everything is per standard deviation of the prior: an eigenvalue λ of I shrinks the posterior's standard deviation along its direction to
about 1/√(1 + λ) of the prior's; well under 1, the data say nothing there.
"""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from eande.calibration.calibrate import check_pairs, embed_rows
from eande.foundations.checks import (
    InputError,
    as_float_tensor,
    check_count,
    check_finite,
    check_shape,
)
from eande.foundations.seeds import derive_seed
from eande.inference.model import EmbedAndEmulate
from eande.inference.normalizer import estimate_normalizer
from eande.simulation.read.simulations import Simulations

# Parameters are far apart from one standard deviation of the prior on, and not told apart under half a nat.
_FAR, _ALIKE = 1.0, 0.5
# Fewer data than this many times D do not carry a covariance.
_DATA_PER_PARAMETER = 10
_DRAWS = 20_000
# Eigenvalue under which a direction counts as unknown: the posterior keeps at least 90 % of the prior's width.
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
        directions: its eigenvectors, in standard deviations of the prior (k, D, D); ``directions[i, :, 0]`` is the stiffest at point i.
        effective_data: how many data carry the covariance at each point (k,).
        divergence: KL(φ_i, φ_j) in nats (k, k): how much data from φ_i speak against φ_j.
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
        """Return at which points enough data carry the covariance (k,): few look as if they said nothing, and the other properties leave them out."""
        return self.effective_data >= _DATA_PER_PARAMETER * len(self.names)

    @property
    def unknown_directions(self) -> Tensor:
        """Return how many directions the data say nothing about, at each known point."""
        return (self.eigenvalues[self.known] < _UNKNOWN).sum(1)

    @property
    def parameter_information(self) -> Tensor:
        """Return the median information about each parameter when the others are unknown, per standard deviation of the prior (D,)."""
        unit = torch.eye(len(self.scale), dtype=self.fisher.dtype)
        # With the prior's own information, one per standard deviation: what the data say nothing about counts as zero, not as singular.
        return (
            1 / torch.linalg.inv(self.fisher[self.known] + unit).diagonal(dim1=1, dim2=2) - 1
        ).quantile(0.5, 0)

    def equivalent(self) -> list[tuple[int, int]]:
        """Return pairs of known points far apart that no data tell apart, farthest first."""
        points = self.phi.double() / torch.where(self.scale > 0, self.scale, 1.0)
        apart = torch.cdist(points, points)
        both = self.known.unsqueeze(0) & self.known.unsqueeze(1)
        alike = (self.divergence < _ALIKE) & (self.divergence.T < _ALIKE) & (apart > _FAR) & both
        pairs = alike.triu(1).nonzero()
        return [
            (int(i), int(j))
            for i, j in pairs[apart[pairs[:, 0], pairs[:, 1]].argsort(descending=True)]
        ]

    def __str__(self) -> str:
        """Return the findings in words."""
        known, all_points = int(self.known.sum()), len(self.phi)
        few = f"at {all_points - known} of {all_points} points fewer than {_DATA_PER_PARAMETER * len(self.names)} data carry the covariance"
        if not known:
            return f"cannot tell: {few}. The model is too sharp for so few data: give more"
        told = ", ".join(
            f"{name} {value:.3g}"
            for name, value in zip(self.names, self.parameter_information.tolist(), strict=True)
        )
        stiff = " > ".join(
            f"{value:.3g}" for value in self.eigenvalues[self.known].quantile(0.5, 0).tolist()
        )
        mean = self.fisher[self.known].mean(0)
        weakest = torch.linalg.eigh(mean).eigenvectors[:, 0]
        sloppy = " ".join(
            f"{weight:+.2f}·{name}"
            for weight, name in zip(weakest.tolist(), self.names, strict=True)
        )
        pairs = self.equivalent()
        lines = [
            f"information per parameter, others unknown (per prior standard deviation): {told}",
            f"along the local directions, stiffest first: {stiff}",
            f"directions the data say nothing about, median over the prior: {int(self.unknown_directions.median())} of {len(self.names)}",
            f"least known combination, averaged over the prior (in prior standard deviations): {sloppy}",
            f"pairs of parameters far apart that no data tell apart: {len(pairs)} of {known * (known - 1) // 2}",
        ]
        left_out = [] if known == all_points else [f"{few}; they are left out here: give more data"]
        return "\n".join([*left_out, *lines])


@torch.no_grad()
def identifiability(
    model: EmbedAndEmulate,
    simulations: Simulations,
    *,
    phi: object = None,
    points: int = 200,
    seed: int = 0,
) -> Identifiability:
    """Compute the model's Fisher information and the divergence between parameters; no simulation is run.

    It is the model's view: what the encoder threw away, or what too few simulations could not teach it, counts as unknown. Near the edge of
    the prior, where data of parameters outside are missing from the bank, the information is under-estimated.

    Args:
        model: fitted.
        simulations: a bank of data from the prior; those it was trained on will do. The sharper the model, the more are needed.
        phi: points (k, D) to look at; draws of the prior by default.
        points: how many of them.
        seed: of the draws.
    """
    if not isinstance(simulations, Simulations):
        raise InputError(
            f"simulations: expected Simulations (from arrays: Simulations.from_arrays(phi, y)), got {type(simulations).__name__}"
        )
    check_count("points", points, 2)
    check_pairs(model, simulations.phi, simulations.y, simulations.groups)
    draws = model.prior.sample(points, seed=derive_seed(seed, "points")) if phi is None else phi
    chosen = as_float_tensor("phi", draws, device=model.device)
    check_shape("phi", chosen, ("k", model.prior.dimension))
    check_count("number of points", len(chosen), 1)
    check_finite("phi", chosen)
    if not (inside := model.prior.contains(chosen)).all():
        raise InputError(
            f"phi: expected points inside the prior's support, got {int((~inside).sum())} of {len(inside)} outside"
        )
    embedded, bank = embed_rows(model, simulations.y), model.prior_bank(model.prior, _DRAWS)
    log_c = estimate_normalizer(model.similarity, embedded, bank).log_value
    scale = bank.phi.double().std(0)
    scores, slopes = _scores_and_slopes(model, embedded, chosen)
    log_joint = scores - log_c.unsqueeze(1)
    weights = log_joint.softmax(0)
    centred = slopes - (weights * slopes).sum(1, keepdim=True)
    fisher = torch.einsum("mk,dmk,emk->kde", weights, centred, centred) * scale.unsqueeze(1) * scale
    values, vectors = torch.linalg.eigh(fisher)
    expected, log_z = weights.T @ scores, log_joint.logsumexp(0)
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


def _scores_and_slopes(
    model: EmbedAndEmulate, embedded: Tensor, phi: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the scores (m, k) of all data and points, and their derivatives by each parameter (D, m, k)."""

    def score(phi: Tensor) -> Tensor:
        return model.similarity.score(embedded, model.emulate(phi))

    slopes = []
    for d in range(phi.shape[1]):
        # A point's scores depend on that point alone: one sweep differentiates all of them.
        direction = torch.zeros_like(phi)
        direction[:, d] = 1
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message=".*torch.jit.script", category=DeprecationWarning
            )  # torch's own affair
            values, slope = torch.func.jvp(score, (phi,), (direction,))[:2]
        slopes.append(slope.double())
    return values.double(), torch.stack(slopes)
