"""The encoders of the Lorenz 96 study, and the views of the data that they are trained on."""

import torch
from torch import nn

from eande.networks.lorenz96 import SmallRingEncoder, lorenz96_encoder
from eande.simulation.read.views import Compose, RandomWindow, Roll, View
from eande.studies.lorenz96.sizes import WINDOW, Size


def make_encoder(size: Size, seed: int) -> tuple[nn.Module, int]:
    """Make the encoder of that size; return it with its embedding dimension."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if size.encoder == "small":
            return SmallRingEncoder(64), 64
        if size.encoder == "resnet34":
            return lorenz96_encoder(128), 128
        return lorenz96_encoder(128, depth=18, width=32), 128


def make_views(*, turned: bool) -> View:
    """Return what the encoder sees: a random window, of a ring that may be turned."""
    window = RandomWindow(WINDOW)
    return Compose(window, Roll(sections=(36, 360))) if turned else window
