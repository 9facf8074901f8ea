"""Deep sets, for exchangeable data: their order makes no difference.

Reference:
    Zaheer et al., *Deep Sets*, 2017.
"""

from typing import Any

import torch
from torch import Tensor, nn

from eande.foundations.checks import InputError, check_count, show_shape
from eande.networks.gaps import with_gaps
from eande.networks.mlp import ResidualMLP
from eande.networks.pooling import moments
from eande.networks.precision import full_precision

# Nobody trains a wider one, and a file that asks for one is damaged.
_WIDEST = 2**16


class DeepSet(nn.Module):
    """A residual MLP of each element; mean, log standard deviation and maximum; another MLP.

    Data have the shape (elements, columns), or (elements,) for single numbers. The first MLP starts
    as a linear map, so that what is pooled at first are moments of the data themselves.

    Args:
        columns: numbers of an element.
        outputs: size n of the output.
        width: size of the hidden layers.
        features: numbers that become of an element.
        blocks: residual blocks of either MLP.
        gaps: whether NaN stands for what is missing; the network then sees where. An element
            without any number counts as much as the others, so that the share of such elements is
            seen, too.

    Example:
        >>> DeepSet(1, 8)(torch.zeros(5, 100)).shape
        torch.Size([5, 8])
    """

    def __init__(
        self,
        columns: int,
        outputs: int,
        *,
        width: int = 64,
        features: int = 16,
        blocks: int = 1,
        gaps: bool = False,
    ) -> None:
        super().__init__()
        for name, size in {"columns": columns, "features": features}.items():
            check_count(name, size, 1, at_most=_WIDEST)
        self.settings: dict[str, Any] = {
            "columns": int(columns),
            "outputs": int(outputs),
            "width": int(width),
            "features": int(features),
            "blocks": int(blocks),
            "gaps": gaps,
        }
        self.columns = int(columns)
        self.gaps = gaps
        inputs = 2 * columns if gaps else columns
        self.element = ResidualMLP(inputs, features, width=width, blocks=blocks, activation="silu")
        self.head = ResidualMLP(3 * features, outputs, width=width, blocks=blocks)

    def features(self, x: Tensor) -> Tensor:
        """Return what is pooled over the elements of sets (batch, elements, columns)."""
        if x.ndim == 2 and self.columns == 1:
            x = x.unsqueeze(2)
        if x.ndim != 3 or x.shape[2] != self.columns:
            raise InputError(
                f"encoder: expected sets of shape (elements, {self.columns}), got "
                f"{show_shape(x.shape[1:])}"
            )
        if self.gaps:
            x = with_gaps(x, 2)
        elements = self.element(x.flatten(0, 1)).unflatten(0, x.shape[:2]).float()
        return torch.cat([moments(elements.transpose(1, 2)), elements.amax(1)], dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, elements, columns) to (batch, n)."""
        features = self.features(x)
        with full_precision(x.device):
            out: Tensor = self.head(features)
            return out
