"""Residual MLPs, for vectors and parameters.

Reference:
    Jiang, Lu and Willett, *Embed and Emulate*, Appendix C.1 (both networks of the synthetic task,
    after Jiang et al., 2022).
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from eande.foundations.checks import check_choice, check_count
from eande.networks.gaps import with_gaps

_NORMALIZATIONS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm1d,
    "layer": nn.LayerNorm,
    "none": nn.Identity,
}
_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}
NORMALIZATIONS = tuple(_NORMALIZATIONS)
ACTIVATIONS = tuple(_ACTIVATIONS)
# Nobody trains larger ones, and a file that asks for one is damaged.
_LARGEST_INPUT = 2**31
_WIDEST = 2**16
_DEEPEST = 1_000


class ResidualMLP(nn.Module):
    """A linear layer, residual blocks, a linear layer, and a linear skip over all of them.

    A block is linear – norm – activation – linear – norm, plus skip. With the linear skip over all
    layers the network is a linear map of its input at initialisation. On the sphere that matters: a
    closed curve of data whose embedding does not enclose the origin at first can stay folded during
    all of the training in low dimension.

    Args:
        inputs: size of the (flattened) input.
        outputs: size n of the output.
        width: size of the hidden layers.
        blocks: number of residual blocks.
        normalization: ``"batch"`` (the paper's), ``"layer"`` or ``"none"``.
        activation: ``"relu"`` (the paper's), ``"silu"`` or ``"tanh"``.
        linear_skip: whether there is a linear skip over all layers; False is the paper's.
        gaps: whether NaN stands for what is missing; the network then sees where, by as many
            further inputs.

    Example:
        >>> import torch
        >>> ResidualMLP(3, 8)(torch.zeros(5, 3)).shape
        torch.Size([5, 8])
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        width: int = 256,
        blocks: int = 3,
        normalization: str = "none",
        activation: str = "relu",
        linear_skip: bool = True,
        gaps: bool = False,
    ) -> None:
        super().__init__()
        check_count("inputs", inputs, 1, at_most=_LARGEST_INPUT)
        check_count("outputs", outputs, 1, at_most=_WIDEST)
        check_count("width", width, 1, at_most=_WIDEST)
        check_count("blocks", blocks, 0, at_most=_DEEPEST)
        check_choice("normalization", normalization, NORMALIZATIONS)
        check_choice("activation", activation, ACTIVATIONS)
        self.settings: dict[str, Any] = {
            "inputs": int(inputs),
            "outputs": int(outputs),
            "width": int(width),
            "blocks": int(blocks),
            "normalization": normalization,
            "activation": activation,
            "linear_skip": linear_skip,
            "gaps": gaps,
        }
        self.gaps = gaps
        inputs = 2 * inputs if gaps else inputs
        self.first = nn.Linear(inputs, width)
        self.blocks = nn.Sequential(
            *(_ResidualBlock(width, normalization, activation) for _ in range(blocks))
        )
        self.activation = _ACTIVATIONS[activation]()
        self.last = nn.Linear(width, outputs)
        self.skip = nn.Linear(inputs, outputs, bias=False) if linear_skip else None
        # Without memory there is nothing to draw, and torch would load a second's worth of modules.
        if self.skip is not None and not self.skip.weight.is_meta:
            nn.init.zeros_(self.last.weight)
            # Not zero: the centre of the data must have a direction too.
            nn.init.normal_(self.last.bias, std=1e-2)
            nn.init.orthogonal_(self.skip.weight)

    def features(self, x: Tensor) -> Tensor:
        """Return what the linear skip gets: the input, flattened, and where it has gaps."""
        x = x.flatten(1)
        return with_gaps(x, 1) if self.gaps else x

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, …) to (batch, n), the input flattened."""
        x = self.features(x)
        out: Tensor = self.last(self.activation(self.blocks(self.first(x))))
        return out if self.skip is None else out + self.skip(x)


class _ResidualBlock(nn.Module):
    def __init__(self, width: int, normalization: str, activation: str) -> None:
        super().__init__()
        norm = _NORMALIZATIONS[normalization]
        last = nn.Linear(width, width)
        if normalization == "none":
            # Without normalisation the sum of many branches may grow, so each block starts as the
            # identity.
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
        self.branch = nn.Sequential(
            nn.Linear(width, width), norm(width), _ACTIVATIONS[activation](), last, norm(width)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)
