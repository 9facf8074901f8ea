"""Matrix products of an emulator on a GPU's tensor cores, at the precision of float32."""

import copy

import torch
from torch import Tensor, nn

from eande.networks.mlp import ResidualMLP
from eande.similarities.similarity import Similarity

# The largest change of a score, in nats, that a copy for tensor cores may make.
_LARGEST_CHANGE = 0.01
# Only scores within so many nats of their maximum are compared: the rest has no weight.
_RELEVANT_NATS = 20.0
# How many emulated parameters serve as embeddings of data in that comparison.
_COMPARED_DATA = 256


@torch.no_grad()
def for_tensor_cores(emulator: nn.Module, similarity: Similarity, phi: Tensor) -> nn.Module:
    """Return a copy of one of our residual MLPs whose products run on a GPU's tensor cores.

    Any other network is returned unchanged, and so is one whose copy would change posteriors.

    Args:
        emulator: the network.
        similarity: how its outputs are scored.
        phi: what to compare the two on: standardised draws of the prior (m, D).
    """
    if type(emulator) is not ResidualMLP:
        return emulator
    fast = copy.deepcopy(emulator)
    for module in list(fast.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, SplitLinear(child))
    # A trained encoder places data near the emulated parameters, which therefore serve as data.
    g = similarity.place(emulator(phi))
    f = g[:_COMPARED_DATA]
    before = similarity.score(f, g)
    after = similarity.score(f, similarity.place(fast(phi)))
    relevant = before > before.amax(1, keepdim=True) - _RELEVANT_NATS
    change = (after - before).abs()[relevant]
    agrees = (change <= _LARGEST_CHANGE).all() and torch.isfinite(before).all()
    return fast if agrees else emulator


class SplitLinear(nn.Module):
    """A linear layer for tensor cores, with every float32 factor as a sum of two of half precision.

    Tensor cores multiply float16 numbers, of eleven significant bits, and sum in float32:

        x W = (x₁ + x₂)(W₁ + W₂) ≈ x₂W₁ + x₁W₂ + x₁W₁,

    computed as one product three times as long. Tensor cores truncate sums where float32 rounds, so
    the small terms come first, while the sum is small. A single product in half precision would
    change a sharp posterior by whole nats. Numbers beyond ±65,504 overflow.

    Args:
        linear: the layer.
    """

    weight: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        large, small = _split(linear.weight.detach())
        self.register_buffer("weight", torch.cat([large, small, large], dim=1).T)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """Map (m, inputs) to (m, outputs)."""
        large, small = _split(x)
        product = torch.mm(
            torch.cat([small, large, large], dim=1), self.weight, out_dtype=torch.float32
        )
        return product if self.bias is None else product + self.bias


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return a float32 tensor as two of half precision: the leading bits and the remainder."""
    large = x.half()
    return large, (x - large.float()).half()
