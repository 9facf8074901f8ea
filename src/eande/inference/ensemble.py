r"""Several models as one: the mean of their ratios.

    r(φ, y) = (1/M) Σ_j r_j(φ, y),      r_j = e^{s_j(f_j(y), g_j(φ))} / C_j(y)

Each r_j is a posterior over the prior, so their mean is one too: where members disagree, it is as wide as their
disagreement. It is a similarity of joint embeddings: of all f_j(y) with their −log C_j, and of all g_j(φ). An ensemble is therefore
an :class:`EmbedAndEmulate` like any other: one pass of its encoders per observation, then the emulators alone.

Reference:
    Hermans et al., *A Trust Crisis In Simulation-Based Inference?*, 2022 (ensembles are more conservative than their members).
"""

import copy
import math
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from eande.foundations.checks import InputError
from eande.inference.model import EmbedAndEmulate
from eande.inference.normalizer import estimate_normalizer
from eande.similarities.similarity import Aim, SideBySide, Similarity

# Prior draws for a member's own normaliser; its error of a few per cent only weighs the members.
_DRAWS = 20_000
# What a rigorous bound leaves for rounding: scores of hundreds of nats cancel against normalisers as large.
_ROUNDING = 2e-6


class Mixture(SideBySide):
    """The log of the mean over members of r_j: a datum is every member's own embedding of it, each followed by −log C_j(y).

    Args:
        members: the models. They belong to the joint encoder.
    """

    def __init__(self, members: Sequence[EmbedAndEmulate]) -> None:
        super().__init__()
        self._members = tuple(members)
        self._raw = [member.embedding_dimension for member in members]
        with torch.no_grad():
            zeros = [
                torch.zeros(1, n, device=member.device)
                for n, member in zip(self._raw, members, strict=True)
            ]
            both = [
                (m.similarity.place_datum(x), m.similarity.place(x))
                for m, x in zip(members, zeros, strict=True)
            ]
        self._embedded, self._emulated = (
            [part.shape[1] for part in side] for side in zip(*both, strict=True)
        )

    @property
    def width(self) -> int:
        """The width of one embedded datum."""
        return sum(self._embedded) + len(self._members) + 1

    def place(self, raw: Tensor) -> Tensor:
        """Put every member's emulated points where it wants them."""
        parts = zip(self._members, raw.split(self._raw, dim=-1), strict=True)
        return torch.cat([member.similarity.place(part) for member, part in parts], dim=-1)

    def place_datum(self, raw: Tensor, aim: Aim | None = None) -> Tensor:
        """Return every member's embedding and −log C_j, and the datum's own part of the exponent, shape (m, width). Nothing is aimed."""
        assert aim is None, "normalisers belong to where the members put data"
        joint, features = [], []
        for member, part in zip(self._members, raw.split(self._raw, dim=-1), strict=True):
            f = member.similarity.place_datum(part)
            normalizer = estimate_normalizer(
                member.similarity, f, member.prior_bank(member.prior, _DRAWS)
            )
            joint += [f, -normalizer.log_value.float().unsqueeze(1)]
            features.append(member.similarity.features(f))
        return torch.cat([*joint, self.tilt(torch.cat(features, dim=-1))], dim=-1)

    def _parts(self, embedded: Tensor) -> Iterator[tuple[Similarity, Tensor, Tensor]]:
        """Yield the similarity, the embedding and −log C of every member."""
        columns = iter(
            embedded.split([width for own in self._embedded for width in (own, 1)] + [1], dim=-1)
        )
        for member in self._members:
            yield member.similarity, next(columns), next(columns)[..., 0]

    def features(self, embedded: Tensor) -> Tensor:
        """Return the members' features side by side."""
        return torch.cat(
            [similarity.features(f) for similarity, f, _ in self._parts(embedded)], dim=-1
        )

    def _combine(self, scores: Sequence[Tensor], tilt: Tensor) -> Tensor:
        return self.exponent * tilt * (reduce(torch.logaddexp, scores) - math.log(len(scores)))

    def score_one(self, embedded: Tensor, emulated: Tensor) -> Tensor:
        """Return the scores of all pairs, (m, width) × (k, the members' widths) → (m, k)."""
        parts = zip(self._parts(embedded), emulated.split(self._emulated, dim=-1), strict=True)
        return self._combine(
            [similarity.score(f, g) + c.unsqueeze(1) for (similarity, f, c), g in parts],
            embedded[..., -1:],
        )

    def paired_score_one(self, embedded: Tensor, emulated: Tensor) -> Tensor:
        """Return the scores of matching rows, (m,)."""
        parts = zip(self._parts(embedded), emulated.split(self._emulated, dim=-1), strict=True)
        return self._combine(
            [similarity.paired_score(f, g) + c for (similarity, f, c), g in parts],
            embedded[..., -1],
        )

    def bound_one(self, embedded: Tensor) -> Tensor | None:
        """Return the mean of the members' bounds, on the scale of the ratio; None where a member has none."""
        tops = []
        for similarity, f, c in self._parts(embedded):
            bound = similarity.bound(f)
            if bound is None:
                return None
            tops.append(bound + c + _ROUNDING * (bound.abs() + c.abs()))
        return self._combine(tops, embedded[..., -1])


class JointEncoder(nn.Module):
    """The outputs of the members' encoders side by side."""

    def __init__(self, members: Sequence[EmbedAndEmulate]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, y: Tensor) -> Tensor:
        """Map data (m, …) to (m, the members' n)."""
        joint = []
        for member in self.members:
            assert isinstance(member, EmbedAndEmulate)
            joint.append(member.encoder(member.y_standardizer(y)).float())
        return torch.cat(joint, dim=1)


class JointEmulator(nn.Module):
    """The outputs of the members' emulators side by side. The members belong to the encoder."""

    def __init__(self, members: Sequence[EmbedAndEmulate]) -> None:
        super().__init__()
        self._members = tuple(members)

    def forward(self, phi: Tensor) -> Tensor:
        """Map parameters (m, D) to (m, the members' n)."""
        return torch.cat(
            [member.emulator(member.phi_standardizer(phi)) for member in self._members], dim=1
        )


def ensemble(models: Sequence[EmbedAndEmulate]) -> EmbedAndEmulate:
    """Return the model whose ratio is the mean of the given models' ratios; they must share the prior and the shape of y.

    Args:
        models: at least two, trained on the same simulations from different seeds, say; they are copied.
    """
    _check_members(models)
    # Copies: what is done to a model later, calibration for instance, must not change the ensemble.
    members = [copy.deepcopy(model).to(models[0].device) for model in models]
    first = members[0]
    joint = EmbedAndEmulate(
        JointEncoder(members),
        JointEmulator(members),
        Mixture(members).to(first.device),
        first.prior,
        y_shape=first.y_shape,
        embedding_dimension=sum(member.embedding_dimension for member in members),
    ).to(first.device)
    joint.encoder_rows, joint.emulator_rows = first.encoder_rows, first.emulator_rows
    joint.members = tuple(members)
    joint.history = [
        record | {"member": i} for i, member in enumerate(members) for record in member.history
    ]
    return joint.requires_grad_(False).eval()


def _check_members(models: Any) -> None:
    wrong = (
        next((model for model in models if not isinstance(model, EmbedAndEmulate)), None)
        if isinstance(models, Sequence)
        else models
    )
    if wrong is not None:
        raise InputError(
            f"models: expected a list of fitted models (from files: eande.load(path)), got {repr(wrong).partition('(')[0]}"
        )
    if len(models) < 2:
        raise InputError(f"models: expected a list of at least 2, got {len(models)}")
    for model in models:
        # As fitted, β is 1, or 0 where nothing better than the prior was found.
        calibrated = model.similarity.slope is not None or model.similarity.turn is not None
        if model.members or calibrated or model.similarity.exponent.item() not in (0, 1):
            raise InputError(
                "models: expected plain models as fitted, got an ensemble or a calibrated one; combine first, then calibrate"
            )
        (mine, prior), (other, another) = (
            ((m.y_shape, m.prior.dimension), m.prior) for m in (models[0], model)
        )
        if mine != other or not (
            prior is another or torch.equal(prior.sample(8, seed=0), another.sample(8, seed=0))
        ):
            raise InputError(
                "models: expected one prior and one shape of y, got models that differ"
            )
