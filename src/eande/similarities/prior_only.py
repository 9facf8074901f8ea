"""What a fit returns that found nothing better than the prior: a score of 0 everywhere."""

from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from eande.foundations.documents import as_document
from eande.similarities.similarity import Similarity, similarity_from_description


class PriorOnly(Similarity):
    """A score of 0 for all pairs, so that every posterior is the prior.

    Args:
        rejected: the similarity that was trained and did worse; calibration may still make
            something of it.
    """

    name = "prior only"
    trainable = False

    def __init__(self, rejected: Similarity) -> None:
        super().__init__()
        self.rejected = rejected

    def place(self, raw: Tensor) -> Tensor:
        """Put a network's raw output where the rejected similarity wants it."""
        return self.rejected.place(raw)

    def score(self, f: Tensor, g: Tensor) -> Tensor:
        """Return zeros, (m, n) × (k, n) → (m, k), whose gradient is zero."""
        return (0 * g.sum(-1)).expand(len(f), -1)

    def paired_score(self, f: Tensor, g: Tensor) -> Tensor:
        """Return zeros, (m, n) × (m, n) → (m,)."""
        return 0 * g.sum(-1)

    def bound(self, f: Tensor) -> Tensor:
        """Return zeros, (m,)."""
        return f.new_zeros(len(f))

    def pool(self, f: Tensor) -> Tensor:
        """Pool as the rejected similarity does."""
        return self.rejected.pool(f)

    def features(self, f: Tensor) -> Tensor:
        """Return the features of the rejected similarity."""
        return self.rejected.features(f)

    @property
    def trained(self) -> Similarity:
        """The similarity that was trained."""
        return self.rejected.trained

    def describe(self) -> dict[str, Any]:
        """Return the name and what is inside."""
        return {"name": self.name, "rejected": self.rejected.describe()}

    @classmethod
    def from_description(cls, description: dict[str, Any]) -> Self:
        """Make it around what it rejected."""
        known = as_document("similarity", description, _Description)
        return cls(similarity_from_description(known.rejected))


@dataclass
class _Description:
    """What a file holds of it."""

    rejected: dict[str, Any]
