r"""Regions of high posterior density, as numbers: what a prior is truncated to.

    R = ⋃_o {φ : log r̂(φ, y_o) ≥ t_o}

The level sets of the ratio are the smallest regions that there are: among all that hold a given
share of a posterior, {r̂ ≥ t} has the least mass under the prior (Neyman and Pearson), and it is
the same in whatever coordinates. Of a model nothing is kept but its emulators, the embeddings of
the observations and the thresholds; neither an encoder nor data. Near the edge all is computed in
float64, so that a point lies on one side of it whatever others it comes with.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from eande.foundations.checks import InputError, check_count, check_shape
from eande.foundations.documents import as_document
from eande.inference.model import EmbedAndEmulate
from eande.inference.weights import check_weights
from eande.networks.choose import NetworkDescription, describe_network, outline_network
from eande.networks.standardizer import Standardizer
from eande.priors.truncated import Region
from eande.similarities.similarity import Similarity, similarity_from_description

# Parameters that are emulated at once.
_ROWS = 16_384
# Nats from the edge within which float32 does not tell on which side a point lies.
_NEAR = 0.1
_MOST_MEMBERS = 1_000


class Part(NamedTuple):
    """What is kept of a model, or of a member of an ensemble.

    Args:
        emulator: g.
        standardizer: of the parameters.
        similarity: s.
        f: embedded observations (m, n).
        offset: what is added to the scores of each, −log C for a member, (m,).
    """

    emulator: nn.Module
    standardizer: Standardizer
    similarity: Similarity
    f: Tensor
    offset: Tensor

    def placed(self, device: torch.device, precision: torch.dtype) -> Part:
        """Return a copy on a device, in a precision."""
        emulator, standardizer, similarity = (
            copy.deepcopy(one).to(device, precision) for one in self[:3]
        )
        f, offset = (one.to(device, precision) for one in self[3:])
        return Part(emulator, standardizer, similarity, f, offset)  # type: ignore[arg-type]


class ScoreRegion(Region):
    """Where the score of one observation, or of any of several, reaches its threshold.

    Args:
        parts: of a model, or of each member of an ensemble.
        threshold: of the score s, for every observation (m,).
    """

    kind = "score"

    def __init__(self, parts: Sequence[Part], threshold: Tensor) -> None:
        self._stored = list(parts)
        self.threshold = threshold.double().cpu()
        self._placed: dict[tuple[torch.device, torch.dtype], tuple[list[Part], Tensor]] = {}

    @classmethod
    def of(cls, model: EmbedAndEmulate, f: Tensor, threshold: Tensor) -> ScoreRegion:
        """Keep of a fitted model what tells its scores.

        Args:
            model: fitted, not calibrated.
            f: embedded observations (m, n).
            threshold: for every observation, (m,).
        """
        if not model.members:
            return cls([_part(model, f, f.new_zeros(len(f)))], threshold)
        widths = [member.embedding_dimension + 1 for member in model.members]
        joint = zip(model.members, f.split(widths, dim=-1), strict=True)
        return cls([_part(one, own[:, :-1], own[:, -1]) for one, own in joint], threshold)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the copies on devices: another process may have other devices."""
        return self.__dict__ | {"_placed": {}}

    def depth(self, phi: Tensor) -> Tensor:
        """Return by how much the best score exceeds its threshold, in nats, (n,), in float64."""
        return torch.cat([self._depth(part) for part in phi.split(_ROWS)])

    def _depth(self, phi: Tensor) -> Tensor:
        depth = self._depth_in(phi, torch.float32)
        near = (depth.abs() < _NEAR).nonzero()[:, 0]
        if len(near):
            depth[near] = self._depth_in(phi[near], torch.float64)
        return depth

    @torch.no_grad()
    def _depth_in(self, phi: Tensor, precision: torch.dtype) -> Tensor:
        parts, threshold = self._on(phi.device, precision)
        phi = phi.to(precision)
        scores = []
        for part in parts:
            g = part.similarity.place(part.emulator(part.standardizer(phi)))
            scores.append(part.similarity.score(part.f, g) + part.offset.unsqueeze(1))
        joint = torch.stack(scores).double().logsumexp(0) - math.log(len(scores))
        # NaN where parameters are so large that an emulator overflows: nothing lies there.
        excess = (joint - threshold.unsqueeze(1)).nan_to_num(-torch.inf)
        return excess.amax(0)

    def _on(self, device: torch.device, precision: torch.dtype) -> tuple[list[Part], Tensor]:
        """Return all of it on a device and in a precision, copied there once."""
        if (device, precision) not in self._placed:
            parts = [part.placed(device, precision) for part in self._stored]
            self._placed[device, precision] = (parts, self.threshold.to(device))
        return self._placed[device, precision]

    def describe(self) -> dict[str, Any] | None:
        """Return how its emulators and similarities are made; None for a network of the user's."""
        parts = []
        for part in self._stored:
            emulator = describe_network(part.emulator)
            if emulator is None:
                return None
            parts.append({"emulator": asdict(emulator), "similarity": part.similarity.describe()})
        return {"kind": self.kind, "parts": parts}

    def tensors(self) -> dict[str, Tensor]:
        """Return weights, embeddings, offsets and thresholds."""
        found = {"threshold": self.threshold}
        for number, part in enumerate(self._stored):
            for name, module in (
                ("emulator", part.emulator),
                ("standardizer", part.standardizer),
                ("similarity", part.similarity),
            ):
                weights = module.state_dict().items()
                found |= {f"{number}.{name}.{key}": x for key, x in weights}
            found |= {f"{number}.f": part.f, f"{number}.offset": part.offset}
        return found

    @classmethod
    def from_description(
        cls, description: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> ScoreRegion:
        """Make the region that a file describes, from its tensors."""
        known = as_document("region", description, _Description)
        check_count("number of parts of a region", len(known.parts), 1, at_most=_MOST_MEMBERS)
        left = dict(tensors)
        threshold = _taken(left, "threshold", ("m",))
        parts = [
            _read_part(number, part, left, len(threshold))
            for number, part in enumerate(known.parts)
        ]
        if left:
            raise InputError(f"region: expected tensors of its parts, got {min(left)!r}, too")
        return cls(parts, threshold)


@dataclass
class _PartDescription:
    """What a file says of a part."""

    emulator: NetworkDescription
    similarity: dict[str, Any]


@dataclass
class _Description:
    """What a file says of a region."""

    kind: str
    parts: list[_PartDescription]


def _part(model: EmbedAndEmulate, f: Tensor, offset: Tensor) -> Part:
    """Return copies of what is kept of a model, on the CPU."""
    part = Part(model.emulator, model.phi_standardizer, model.similarity, f, offset)
    kept = part.placed(torch.device("cpu"), torch.float32)
    for module in kept[:3]:
        module.eval().requires_grad_(False)
    return kept._replace(f=kept.f.detach().clone(), offset=kept.offset.detach().clone())


def _read_part(
    number: int, described: _PartDescription, left: dict[str, Tensor], observations: int
) -> Part:
    """Make a part, and take its tensors out of those that are left."""
    with torch.device("meta"):
        similarity = similarity_from_description(described.similarity)
    emulator = outline_network(described.emulator)
    for name, module in (("emulator", emulator), ("similarity", similarity)):
        prefix = f"{number}.{name}."
        own = {key: left.pop(key) for key in list(left) if key.startswith(prefix)}
        weights = {key.removeprefix(prefix): x for key, x in own.items()}
        check_weights(f"region, part {number}, {name}", module.state_dict(), weights)
        module.load_state_dict(weights, assign=True)
    standardizing = {
        name: left.pop(key)
        for name in Standardizer.NAMES
        if (key := f"{number}.standardizer.{name}") in left
    }
    if not {"mean", "scale"} <= standardizing.keys():
        raise InputError(f"region: expected the tensors {number}.standardizer.mean and .scale")
    f = _taken(left, f"{number}.f", (observations, "n"))
    offset = _taken(left, f"{number}.offset", (observations,))
    for module in (emulator, similarity):
        module.eval().requires_grad_(False)
    return Part(emulator, Standardizer.of(standardizing), similarity, f, offset)


def _taken(left: dict[str, Tensor], name: str, shape: Sequence[int | str]) -> Tensor:
    """Take a tensor of that shape out of those that are left."""
    if name not in left:
        raise InputError(f"region: expected the tensor {name}, got none")
    check_shape(f"region: {name}", left[name], shape)
    return left.pop(name)
