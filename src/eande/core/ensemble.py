r"""Several models as one: the mean of their ratios.

    r(φ, y) = (1/M) Σ_j r_j(φ, y),      r_j = e^{s_j(f_j(y), g_j(φ))} / C_j(y)

Each r_j is a posterior over the prior, so their mean is one too: where members disagree, it is as wide as their
disagreement. With f'_j = (f_j, −log C_j) and g'_j = (β_j/τ_j · g_j, 1) every log r_j is an inner product, and the mean is a
similarity of the joint embeddings f' and g'. An ensemble is therefore an :class:`EmbedAndEmulate` like any other: one
pass of its encoders per observation, then the emulators alone.

Reference:
    Hermans et al., *A Trust Crisis In Simulation-Based Inference?*, 2022 (ensembles are more conservative than their members).
"""

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from eande.core.checks import InputError
from eande.core.model import EmbedAndEmulate
from eande.core.scores import estimate_normalizer
from eande.core.similarity import Aim, Cosine, Gaussians, Similarity

# Prior draws for a member's own normaliser; its error of a few per cent only weighs the members.
_DRAWS = 20_000
# What a rigorous bound leaves for rounding: scores of hundreds of nats cancel against normalisers as large.
_ROUNDING = 1 + 2e-6


class Mixture(Similarity):
    """The log of the mean over members of e^{f'_j·g'_j}.

    Args:
        members: their number M.
        lengths: the largest length of each member's scaled emulated points; infinite where there is none.
    """

    lengths: Tensor

    def __init__(self, members: int, lengths: Sequence[float]) -> None:
        super().__init__()
        self.members = members
        self.register_buffer("lengths", torch.tensor(list(lengths)))

    def place(self, raw: Tensor) -> Tensor:
        """Leave embeddings where the members put them."""
        return raw

    def place_datum(self, raw: Tensor, aim: Aim | None = None) -> Tensor:
        """Add the datum's own part of the exponent as a last entry: a mean of ratios is no multiple of its embedding. Nothing is aimed."""
        assert aim is None, "normalisers belong to where the members put data"
        return torch.cat([raw, self.tilt(raw)], dim=-1)

    def features(self, embedded: Tensor) -> Tensor:
        """Return the members' embeddings, with zeros for their normalisers."""
        parts = embedded[..., :-1].unflatten(-1, (self.members, -1))
        return torch.cat([parts[..., :-1], torch.zeros_like(parts[..., -1:])], dim=-1).flatten(-2)

    def factor(self) -> Tensor:
        """Return 1: members' factors are in their emulated points."""
        return torch.ones_like(self.exponent)

    def _combine(self, scores: Sequence[Tensor], embedded: Tensor) -> Tensor:
        total = scores[0]
        for other in scores[1:]:
            total = torch.logaddexp(total, other)
        tilt = embedded[..., -1] if total.ndim == 1 else embedded[..., -1:]
        return self.exponent * tilt * (total - math.log(self.members))

    def score(self, embedded: Tensor, emulated: Tensor) -> Tensor:
        """Return the scores of all pairs, (m, M(n + 1) + 1) × (k, M(n + 1)) → (m, k)."""
        parts = zip(embedded[..., :-1].chunk(self.members, -1), emulated.chunk(self.members, -1), strict=True)
        return self._combine([f @ g.T for f, g in parts], embedded)

    def paired_score(self, embedded: Tensor, emulated: Tensor) -> Tensor:
        """Return the scores of matching rows, (m,)."""
        parts = zip(embedded[..., :-1].chunk(self.members, -1), emulated.chunk(self.members, -1), strict=True)
        return self._combine([(f * g).sum(-1) for f, g in parts], embedded)

    def bound(self, embedded: Tensor) -> Tensor | None:
        """Return the mean of the members' bounds, on the scale of the ratio; None where a member has none."""
        if not torch.isfinite(self.lengths).all():
            return None
        parts = embedded[..., :-1].unflatten(-1, (self.members, -1))
        tops = _ROUNDING * parts[..., :-1].norm(dim=-1) * self.lengths + parts[..., -1]
        return self.exponent * embedded[..., -1] * (tops.logsumexp(-1) - math.log(self.members))

    def pool(self, embedded: Tensor) -> Tensor:
        """Refuse more than one: a product of means is no mean of products."""
        if len(embedded) > 1:
            raise InputError(f"pooled: expected one observation, or a single model instead of an ensemble, got {len(embedded)} observations")
        return embedded[0]


class JointEncoder(nn.Module):
    """The members' embeddings side by side, each followed by −log C_j(y)."""

    def __init__(self, members: Sequence[EmbedAndEmulate]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, y: Tensor) -> Tensor:
        """Embed data (m, …) into (m, M(n + 1))."""
        joint = []
        for member in self.members:
            assert isinstance(member, EmbedAndEmulate)
            f = member.embed(y)
            normalizer = estimate_normalizer(member.similarity, f, member.prior_bank(member.prior, _DRAWS))
            joint += [f, -normalizer.log_value.float().unsqueeze(1)]
        return torch.cat(joint, dim=1)


class JointEmulator(nn.Module):
    """The members' emulated points side by side, each scaled by its β/τ and followed by 1. The members belong to the encoder."""

    def __init__(self, members: Sequence[EmbedAndEmulate]) -> None:
        super().__init__()
        self._members = tuple(members)

    def forward(self, phi: Tensor) -> Tensor:
        """Emulate parameters (m, D) into (m, M(n + 1))."""
        joint = []
        for member in self._members:
            g = member.similarity.exponent * member.similarity.factor() * member.emulate(phi)
            joint += [g, torch.ones_like(g[:, :1])]
        return torch.cat(joint, dim=1)


def ensemble(models: Sequence[EmbedAndEmulate]) -> EmbedAndEmulate:
    """Return the model whose ratio is the mean of the given models' ratios; they must share the prior and the shape of y.

    Args:
        models: at least two, trained on the same simulations from different seeds, say; they are copied.
    """
    _check_members(models)
    # Copies: what is done to a model later, calibration for instance, must not change the ensemble.
    members = [copy.deepcopy(model).to(models[0].device) for model in models]
    first = members[0]
    lengths = [(m.similarity.exponent * m.similarity.factor()).item() if isinstance(m.similarity, Cosine) else math.inf for m in members]
    joint = EmbedAndEmulate(
        JointEncoder(members),
        JointEmulator(members),
        Mixture(len(members), lengths).to(first.device),
        first.prior,
        y_shape=first.y_shape,
        embedding_dimension=len(members) * (first.embedding_dimension + 1),
    ).to(first.device)
    joint.encoder_rows, joint.emulator_rows = first.encoder_rows, first.emulator_rows
    joint.members = tuple(members)
    joint.history = [record | {"member": i} for i, member in enumerate(members) for record in member.history]
    return joint.requires_grad_(False).eval()


def _check_members(models: Any) -> None:
    if not isinstance(models, Sequence) or len(models) < 2:
        raise InputError(f"models: expected a list of at least 2, got {len(models) if isinstance(models, Sequence) else type(models).__name__}")
    for model in models:
        if not isinstance(model, EmbedAndEmulate):
            raise InputError(f"models: expected fitted models, got {type(model).__name__}")
        # As fitted, β is 1, or 0 where nothing better than the prior was found.
        calibrated = model.similarity.slope is not None or model.similarity.turn is not None
        if model.members or calibrated or model.similarity.exponent.item() not in (0, 1):
            raise InputError("models: expected plain models as fitted, got an ensemble or a calibrated one; combine first, then calibrate")
        if isinstance(model.similarity, Gaussians):
            raise InputError("models: expected inner products as similarities, cosine or dot, got Gaussians")
        (mine, prior), (other, another) = (((m.y_shape, m.embedding_dimension, m.prior.dimension), m.prior) for m in (models[0], model))
        if mine != other or not (prior is another or torch.equal(prior.sample(8, seed=0), another.sample(8, seed=0))):
            raise InputError("models: expected one prior, one shape of y and one embedding dimension, got models that differ")
