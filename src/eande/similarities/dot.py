"""The free-norm inner product: information may vary over the prior, but there is no upper bound."""

import torch
from torch import Tensor

from eande.foundations.checks import check_count
from eande.similarities.inner_product import InnerProduct


class Dot(InnerProduct):
    """s(f, g) = f·g/√n: embeddings choose their length.

    It has no upper bound, hence no exact acceptance–rejection bound.

    Args:
        dimension: n, the embedding dimension; None for that of the fit.

    Example:
        >>> similarity = Dot(dimension=4)
        >>> similarity.score(torch.ones(1, 4), torch.ones(1, 4))
        tensor([[2.]])
    """

    name = "dot"
    root: Tensor

    def __init__(self, dimension: int | None = None) -> None:
        super().__init__()
        if dimension is not None:
            check_count("dimension", dimension, 1, at_most=2**20)
            dimension = int(dimension)
        self.settings = {"dimension": dimension}
        self.register_buffer("root", torch.tensor(float(dimension or 1)).sqrt())

    def for_dimension(self, dimension: int) -> "Dot":
        """Return the similarity for embeddings in R^n."""
        return Dot(dimension)

    def place(self, raw: Tensor) -> Tensor:
        """Leave embeddings where they are.

        Example:
            >>> Dot(dimension=2).place(torch.tensor([[3.0, 4.0]]))
            tensor([[3., 4.]])
        """
        return raw

    def factor(self) -> Tensor:
        """Return 1/√n."""
        return 1 / self.root

    def bound(self, f: Tensor) -> None:
        """Return None: lengths are free.

        Example:
            >>> Dot(dimension=2).bound(torch.tensor([[3.0, 4.0]])) is None
            True
        """
        return
