"""Several models as one: the mean of their ratios.

    r(φ, y) = (1/M) Σ_j r_j(φ, y),      r_j = e^{s_j(f_j(y), g_j(φ))} / C_j(y)

Each r_j is a posterior over the prior, so their mean is one too: where members disagree, it is as
wide as their disagreement. Its embedding of a datum is every member's f_j(y) followed by −log
C_j(y), a number of the datum alone; that of parameters every g_j(φ) followed by 0. An ensemble is
therefore an :class:`EmbedAndEmulate` like any other: one pass of its encoders per observation, then
the emulators.

C_j is estimated by prior draws. Where few of them come near a member's posterior they would weigh
the members by chance, and proposals that do come near are taken (:mod:`.nearby`).

Reference:
    Hermans et al., *A Trust Crisis In Simulation-Based Inference?*, 2022 (ensembles are more
    conservative than their members).
"""

import copy
import math
import operator
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import accumulate
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from eande.foundations.checks import InputError, show
from eande.inference.guide import Guide
from eande.inference.guide_network import GuideNetwork
from eande.inference.model import EmbedAndEmulate
from eande.inference.nearby import WeighedMembers, weigh_members
from eande.inference.normalizer import PriorBank, estimate_normalizer
from eande.priors.convert import same_law
from eande.similarities.calibrated import Calibrated
from eande.similarities.similarity import Share, Similarity

# Prior draws for a member's own normaliser; its error of a few per cent only weighs the members.
_DRAWS = 20_000
# As many effective draws know it within a fifth, which weighs members well enough.
_FEWEST = 25.0
# What was found for so many data at most is kept until others are asked for.
_KEPT = 512
# What a rigorous bound leaves for rounding: scores of hundreds of nats cancel against normalisers
# as large.
_ROUNDING = 2e-6


class _Part(NamedTuple):
    """A member's share of joint embeddings: its point, and −log C (0 for parameters)."""

    similarity: Similarity
    point: Tensor
    offset: Tensor


class MeanRatio(Similarity):
    """The log of the mean over members of r_j.

    Args:
        members: the models. They belong to the joint encoder.
    """

    name = "mean ratio"
    trainable = False

    def __init__(self, members: Sequence[EmbedAndEmulate]) -> None:
        super().__init__()
        self.settings = {}
        self._members = tuple(members)
        self._widths = [member.embedding_dimension + 1 for member in members]

    def place(self, raw: Tensor) -> Tensor:
        """Leave points where the members put them."""
        return raw

    def _parts(self, joint: Tensor) -> Iterator[_Part]:
        for member, own in zip(self._members, joint.split(self._widths, dim=-1), strict=True):
            yield _Part(member.similarity, own[..., :-1], own[..., -1])

    def score(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the scores of all pairs, (m, n) × (k, n) → (m, k)."""
        pairs = zip(self._parts(f), self._parts(g), strict=True)
        return _log_mean_exp(
            [
                datum.similarity.score(datum.point, phi.point) + datum.offset.unsqueeze(1)
                for datum, phi in pairs
            ]
        )

    def paired_score(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the scores of matching rows, (m, n) × (m, n) → (m,)."""
        pairs = zip(self._parts(f), self._parts(g), strict=True)
        return _log_mean_exp(
            [
                datum.similarity.paired_score(datum.point, phi.point) + datum.offset
                for datum, phi in pairs
            ]
        )

    def grouped_score(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the scores of each datum with points of its own, (m, n) × (m, k, n) → (m, k)."""
        pairs = zip(self._parts(f), self._parts(g), strict=True)
        return _log_mean_exp(
            [
                datum.similarity.grouped_score(datum.point, phi.point) + datum.offset.unsqueeze(1)
                for datum, phi in pairs
            ]
        )

    def bound(self, f: Tensor) -> Tensor | None:
        """Return the mean of the members' bounds, as ratios; None where a member has none."""
        tops = []
        for similarity, point, offset in self._parts(f):
            bound = similarity.bound(point)
            if bound is None:
                return None
            tops.append(bound + offset + _ROUNDING * (bound.abs() + offset.abs()))
        return _log_mean_exp(tops)

    def shares(self, f: Tensor) -> list[Share]:
        """Return the terms of the mean."""
        ends = list(accumulate(self._widths))
        parts = zip(self._members, self._parts(f), self._widths, ends, strict=True)
        return [
            Share(member, part.point, part.offset, slice(end - width, end - 1))
            for member, part, width, end in parts
        ]

    def features(self, f: Tensor) -> Tensor:
        """Return the members' features side by side."""
        parts = [part.similarity.features(part.point) for part in self._parts(f)]
        return torch.cat(parts, dim=-1)


def _log_mean_exp(scores: Sequence[Tensor]) -> Tensor:
    return reduce(torch.logaddexp, scores) - math.log(len(scores))


def _same(one: Tensor, other: Tensor) -> bool:
    return one.device == other.device and torch.equal(one, other)


class JointEncoder(nn.Module):
    """Every member's f_j(y) with its −log C_j(y), side by side."""

    def __init__(self, members: Sequence[EmbedAndEmulate]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.gaps = all(member.takes_gaps for member in members)
        # Of all members together; without it, those that members have of their own.
        self.guide: GuideNetwork | None = None
        # Of the last data, as the members embedded them, and of the banks that knew the emulators:
        # who judges a model asks several times.
        self._last: tuple[list[Tensor], list[PriorBank], WeighedMembers] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is kept: it belongs to these banks."""
        return self.__dict__ | {"_last": None}

    def forward(self, y: Tensor) -> Tensor:
        """Map data (m, …) to (m, Σ (n_j + 1))."""
        return self.near(y)[0]

    def near(self, y: Tensor) -> tuple[Tensor, list[Guide | None]]:
        """Return the same, and proposals for those data whose members were weighed by any."""
        data = [member.embed(y) for member in self._trained()]
        found = self._weighed([f.detach() for f in data])
        joint = []
        for f, normalizer in zip(data, found.normalizers, strict=True):
            joint += [f, -normalizer.log_value.float().unsqueeze(1)]
        guides: list[Guide | None] = [None] * len(y)
        each = torch.arange(len(data), device=found.guided.device)
        for i, row in enumerate(found.guided.tolist()):
            assert found.guide is not None
            guides[row] = found.guide.of(i * len(data) + each)
        return torch.cat(joint, dim=1), guides

    def _weighed(self, data: list[Tensor]) -> WeighedMembers:
        banks = self._banks()
        if self._last is not None:
            known, kept, found = self._last
            # A bank is another one where a weight of its emulator is.
            if all(map(operator.is_, kept, banks)) and all(map(_same, known, data)):
                return found
        found = weigh_members(
            list(self._trained()), data, banks, fewest=_FEWEST, propose=self.propose
        )
        self._last = (data, banks, found) if len(data[0]) <= _KEPT else None
        return found

    def propose(self, data: Sequence[Tensor]) -> Guide | None:
        """Return proposals for data as each member embeds them; None where nothing was learned.

        They are one for each datum, or one for each member of each datum.
        """
        pairs = list(zip(self._trained(), data, strict=True))
        if self.guide is not None:
            features = torch.cat([member.similarity.features(f) for member, f in pairs], dim=1)
            if features.shape[1] != self.guide.settings.features:
                return None
            return self.guide.guide(features, pairs[0][0].prior)
        own = [member.propose(f) for member, f in pairs]
        known = [guide for guide in own if guide is not None]
        return Guide.woven(known) if len(known) == len(own) else None

    def with_guide(self, guide: GuideNetwork | None) -> Self:
        """Return an encoder that shares the members and has that guide."""
        other = copy.copy(self)
        other._modules = dict(self._modules)
        other.guide = guide
        return other

    def by_draws(self, y: Tensor) -> Tensor:
        """Map data to the same without asking how many draws came near, as a CUDA graph must.

        Where it is too few, that member's −log C is NaN: :meth:`forward` knows.
        """
        joint = []
        for member, bank in zip(self._trained(), self._banks(), strict=True):
            f = member.embed(y)
            by_draws = estimate_normalizer(member.similarity, f, bank)
            short = by_draws.effective_draws < _FEWEST
            if not bank.proposable:
                short = torch.zeros_like(short)
            joint += [f, -by_draws.log_value.masked_fill(short, torch.nan).float().unsqueeze(1)]
        return torch.cat(joint, dim=1)

    def _trained(self) -> Iterator[EmbedAndEmulate]:
        for member in self.members:
            assert isinstance(member, EmbedAndEmulate)
            yield member

    def _banks(self) -> list[PriorBank]:
        """Return the same draws of the prior, emulated by each member."""
        prior = next(self._trained()).prior
        return [member.prior_bank(prior, _DRAWS) for member in self._trained()]


class JointEmulator(nn.Module):
    """Every member's g_j(φ) with a 0, side by side. The members belong to the encoder."""

    def __init__(self, members: Sequence[EmbedAndEmulate]) -> None:
        super().__init__()
        self._members = tuple(members)

    def forward(self, phi: Tensor) -> Tensor:
        """Map parameters (m, D) to (m, Σ (n_j + 1))."""
        points = [functional.pad(member.emulate(phi), (0, 1)) for member in self._members]
        return torch.cat(points, dim=1)


def ensemble(models: Sequence[EmbedAndEmulate]) -> EmbedAndEmulate:
    """Return the model whose ratio is the mean of the given models' ratios.

    They must share the prior and the shape of y.

    Args:
        models: at least two, trained on the same simulations from different seeds, say; they are
            copied.

    Example:
        >>> settings = eande.FitSettings(epochs=3, start="linear", device="cpu", seed=1)
        >>> another = eande.fit(simulations, prior, settings=settings, progress=False)
        >>> joint = ensemble([model, another])
        >>> len(joint.members), joint.posterior(y_observed).sample(100)[0].shape
        (2, torch.Size([100, 2]))
    """
    _check_members(models)
    # Copies: what is done to a model later must not change the ensemble.
    members = [copy.deepcopy(model).to(models[0].device) for model in models]
    first = members[0]
    joint = EmbedAndEmulate(
        JointEncoder(members),
        JointEmulator(members),
        MeanRatio(members),
        first.prior,
        y_shape=first.y_shape,
        embedding_dimension=sum(member.embedding_dimension + 1 for member in members),
        # The members were, and data may be large.
        run_once=False,
    ).to(first.device)
    joint.encoder_rows = first.encoder_rows
    joint.emulator_rows = first.emulator_rows
    joint.members = tuple(members)
    joint.tried = first.tried
    joint.history = [
        record | {"member": i} for i, member in enumerate(members) for record in member.history
    ]
    return joint.requires_grad_(False).eval()


def _check_members(models: Any) -> None:
    several = isinstance(models, Sequence)
    wrong = [m for m in models if not isinstance(m, EmbedAndEmulate)] if several else [models]
    if wrong:
        raise InputError(
            "models: expected a list of fitted models (from files: eande.load(path)), got "
            f"{show(wrong[0])}"
        )
    if len(models) < 2:
        raise InputError(f"models: expected a list of at least 2, got {len(models)}")
    first = models[0]
    for model in models:
        if model.combined_views is not None:
            raise InputError(
                "models: expected models of a single view, got one that combines several; make "
                "the ensemble first, then combine"
            )
        if model.members or isinstance(model.similarity, Calibrated):
            raise InputError(
                "models: expected plain models as fitted, got an ensemble or a calibrated one; "
                "combine first, then calibrate"
            )
        if model.y_shape != first.y_shape or not same_law(model.prior, first.prior):
            raise InputError(
                "models: expected one prior and one shape of y, got models that differ"
            )
