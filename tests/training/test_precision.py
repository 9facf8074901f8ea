"""Mixed precision."""

import math

import torch
from torch import nn

from helpers.linear_task import BOX
from helpers.models import quick_fit


def test_mixed_precision_trains(linear_simulations):
    model = quick_fit(linear_simulations[:600], BOX, epochs=3, precision="bf16-mixed")
    assert math.isfinite(model.history[-1]["loss"])


def test_mixed_precision_reaches_the_networks_and_spares_the_embeddings(few_simulations):
    seen = []

    class Spy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 4)

        def forward(self, x):
            out = self.layer(x)
            if self.training:
                seen.append((x.dtype, out.dtype))
            return out

    model = quick_fit(few_simulations, BOX, encoder=Spy(), epochs=1, precision="bf16-mixed")
    assert set(seen) == {(torch.float32, torch.bfloat16)}
    assert model.embed(few_simulations.y[:2]).dtype == torch.float32
