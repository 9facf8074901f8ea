"""The memory bank of the paper's Appendix C: embeddings of past batches as further negatives."""

import torch
from torch import Tensor, nn

from eande.foundations.checks import check_count


class MemoryBank(nn.Module):
    """The latest embeddings of data and of parameters, each with the group it came from.

    An entry of the same group (the same φ) as a row of the batch is a false negative, and the
    losses mask it (``_same_group`` in :mod:`eande.training.losses`). With 500 simulations and a
    bank that spans an epoch every row would otherwise be a negative of itself.

    Args:
        size: how many past pairs are kept.
        dimension: n, the embedding dimension.

    Example:
        >>> bank = MemoryBank(3, 2)
        >>> bank.push(torch.ones(2, 2), torch.ones(2, 2), torch.tensor([7, 8]))
        >>> bank.groups
        tensor([7, 8])
    """

    f: Tensor
    g: Tensor
    groups: Tensor

    def __init__(self, size: int, dimension: int) -> None:
        super().__init__()
        check_count("memory bank size", size, 1)
        self.size = size
        self.register_buffer("f", torch.zeros(0, dimension))
        self.register_buffer("g", torch.zeros(0, dimension))
        self.register_buffer("groups", torch.zeros(0, dtype=torch.long))

    def push(self, f: Tensor, g: Tensor, groups: Tensor) -> None:
        """Add a batch, newest last, and drop the oldest entries beyond the size."""
        self.f = torch.cat([self.f, f.detach()])[-self.size :]
        self.g = torch.cat([self.g, g.detach()])[-self.size :]
        self.groups = torch.cat([self.groups, groups])[-self.size :]
