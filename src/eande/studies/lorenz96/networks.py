"""The encoders of the Lorenz 96 study, and the views of the data that they are trained on."""

import torch
from torch import nn

from eande.networks.lorenz96 import SmallRingEncoder, lorenz96_encoder
from eande.simulation.read.views import Compose, RandomWindow, Roll, View
from eande.studies.lorenz96.sizes import WINDOW, Size
from eande.studies.lorenz96.terms import Terms


def make_encoder(size: Size, outputs: int, seed: int) -> nn.Module:
    """Make the encoder of that size, with so many outputs."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if size.encoder == "small":
            return SmallRingEncoder(outputs)
        if size.encoder == "resnet34":
            return lorenz96_encoder(outputs)
        return lorenz96_encoder(outputs, depth=18, width=32)


def make_views(terms: Terms) -> View:
    """Return what the encoder sees: a random window, of a ring that may be turned."""
    window = RandomWindow(WINDOW)
    return Compose(window, Roll(sections=(36, 360))) if terms.turned else window
