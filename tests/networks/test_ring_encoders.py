"""The encoders of the Lorenz 96 study see the ring of variables as a ring."""

import pytest
import torch

from eande.networks.lorenz96 import RingGrid, SmallRingEncoder, lorenz96_encoder


@pytest.mark.parametrize(
    "make",
    [lambda: SmallRingEncoder(8), lambda: lorenz96_encoder(8, depth=18, width=8)],
    ids=["small", "resnet"],
)
def test_encoders_see_the_ring_as_a_ring(make):
    """A turn of the ring by the encoder's stride leaves its pooled output as it was."""
    torch.manual_seed(0)
    encoder = make().eval()
    y = torch.randn(2, 250, 396)
    grid = RingGrid()(y)
    assert torch.equal(grid[1, 0, :, 3], y[1, :, 3])
    assert torch.equal(grid[1, 4, :, 5], y[1, :, 36 + 53])
    turned = torch.cat([y[..., :36].roll(12, -1), y[..., 36:].roll(120, -1)], dim=-1)
    with torch.no_grad():
        change = (encoder(y) - encoder(turned)).norm() / encoder(y).norm()
    assert change < 0.3
