"""The similarity: how near an embedded datum and an emulated parameter are, in nats.

E&E models the likelihood-to-evidence ratio by a score s of two points of one space,

    log r(φ, y) = s(f(y), g(φ)) − log C(y),

the paper's equation (3), whose score is the cosine over a temperature (:mod:`.cosine`). What
follows from the choice of s belongs to it: where embeddings lie (``place``), the score, its upper
bound, and how independent observations pool.

A similarity is one class in one file of this folder. Settings and files find it by its ``name``,
and the contract test of similarities by being there.

Reference:
    Jiang, Lu and Willett, *Embed and Emulate*, Section 3.1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn

from eande.foundations.checks import InputError, show
from eande.foundations.discovery import import_modules, register
from eande.foundations.documents import as_document, make_from_settings


class PairScore(Protocol):
    """What scores pairs: a similarity, or the head of a baseline in its place."""

    def score(self, f: Tensor, g: Tensor, /) -> Tensor:
        """Return the scores of all pairs, (m, …) × (k, …) → (m, k)."""

    def paired_score(self, f: Tensor, g: Tensor, /) -> Tensor:
        """Return the scores of matching rows, (m, …) × (m, …) → (m,)."""


class Share(NamedTuple):
    """What one member adds to a mean of ratios, (1/M) Σ_j e^{s_j + o_j}.

    Args:
        model: the member.
        f: the data as it embeds them, (m, n).
        offset: o of each datum, (m,).
        columns: where its points lie in joint ones.
    """

    model: Any
    f: Tensor
    offset: Tensor
    columns: slice


class Similarity(nn.Module, ABC):
    """A score of pairs of points f(y) and g(φ), both in R^n.

    Attributes:
        name: what settings and files call it.
        settings: the arguments it was made with, JSON-ready, so that a file can make it again.
        trainable: whether a fit can be asked for it; what is put around another cannot.
        movable: whether embedded data may be moved and placed again, which calibration does to
            correct them; it takes ``place(f) == f``.
    """

    name: ClassVar[str]
    known: ClassVar[dict[str, type[Similarity]]] = {}
    trainable: ClassVar[bool] = True
    movable: ClassVar[bool] = False
    settings: dict[str, Any]

    def __init__(self) -> None:
        super().__init__()
        self.settings = {}

    def __init_subclass__(cls, **options: Any) -> None:
        """Make the class known under its ``name``."""
        super().__init_subclass__(**options)
        if "name" in cls.__dict__:
            register(Similarity.known, cls.name, cls)

    @abstractmethod
    def place(self, raw: Tensor) -> Tensor:
        """Put a network's raw output (…, n) where embeddings lie."""

    @abstractmethod
    def score(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the scores of all pairs, (m, n) × (k, n) → (m, k)."""

    @abstractmethod
    def paired_score(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the scores of matching rows, (m, n) × (m, n) → (m,)."""

    def grouped_score(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the scores of each datum with points of its own, (m, n) × (m, k, n) → (m, k)."""
        count = g.shape[1]
        paired = self.paired_score(f.repeat_interleave(count, dim=0), g.flatten(0, 1))
        return paired.view(len(f), count)

    @abstractmethod
    def bound(self, f: Tensor) -> Tensor | None:
        """Return a rigorous upper bound of the score over all parameters for every row, (m,).

        None where there is none.
        """

    def pool(self, f: Tensor) -> Tensor:
        """Return what stands for independent observations (m, n) of the same parameters.

        The ratio of all of them is the product of theirs: scores of the returned rows are added.
        """
        return f

    def features(self, f: Tensor) -> Tensor:
        """Return the coordinates of embedded data that calibration and diagnostics go by."""
        return f

    def shares(self, f: Tensor) -> Sequence[Share] | None:
        """Return the terms of a mean of ratios for embedded data; None where it is no mean.

        Example:
            >>> model.similarity.shares(model.embed(y_observed[None])) is None
            True
        """
        return None

    @property
    def scale(self) -> float:
        """The factor of an inner product, 1/τ for the cosine; 1 where there is none."""
        return 1.0

    @property
    def trained(self) -> Similarity:
        """The similarity that was trained, without what was put around it since."""
        return self

    def for_dimension(self, dimension: int) -> Self:
        """Return a newly made similarity of these settings for embeddings in R^n."""
        return type(self)(**self.settings)

    def continued(self, trained: Similarity, dimension: int) -> Self:
        """Return the same for a warm start: weights that training moves go on from there."""
        fresh = self.for_dimension(dimension)
        if type(fresh) is not type(trained):
            return fresh
        learned = dict(trained.named_parameters())
        with torch.no_grad():
            for name, parameter in fresh.named_parameters():
                start = learned.get(name)
                fits = start is not None and start.shape == parameter.shape
                if start is not None and fits and parameter.requires_grad:
                    parameter.copy_(start)
        return fresh

    def describe(self) -> dict[str, Any]:
        """Return what a file needs to make it again: its name and settings."""
        if "name" not in type(self).__dict__:
            raise InputError(
                f"similarity: expected a class with a name of its own to store in a file, got "
                f"{type(self).__name__}: give it name = '...'"
            )
        return {"name": self.name, "settings": self.settings}

    @classmethod
    def from_description(cls, description: dict[str, Any]) -> Self:
        """Make the similarity that :meth:`describe` described, without its weights."""
        return make_from_settings(
            f"similarity {cls.name}", cls, description.get("settings", "none")
        )


def find_similarity(name: str) -> type[Similarity]:
    """Return the class of that name, from this folder or from wherever it was defined."""
    import_modules("eande.similarities")
    if name not in Similarity.known:
        names = ", ".join(map(repr, sorted(Similarity.known)))
        raise InputError(f"similarity: expected one of {names}, got {show(name)}")
    return Similarity.known[name]


def as_similarity(similarity: object) -> Similarity:
    """Take an instance as it is, and make one from a name."""
    import_modules("eande.similarities")
    if isinstance(similarity, Similarity) and similarity.trainable:
        return similarity
    names = sorted(name for name, one in Similarity.known.items() if one.trainable)
    if not isinstance(similarity, str) or similarity not in names:
        raise InputError(
            f"similarity: expected one of {', '.join(map(repr, names))}, or an instance such as "
            f"Cosine(temperature=0.05), got {show(similarity)}"
        )
    return Similarity.known[similarity]()


def similarity_from_description(description: Mapping[str, Any]) -> Similarity:
    """Make the similarity a file describes, without its weights."""
    known = as_document("similarity", description, _Named)
    kind = find_similarity(known.name)
    # A class of a user's may compute with what it makes, which the device "meta" cannot.
    ours = kind.__module__.startswith("eande.")
    with nullcontext() if ours else torch.device("cpu"):
        return kind.from_description(dict(description))


@dataclass
class _Named:
    """What all descriptions of similarities have."""

    name: str
