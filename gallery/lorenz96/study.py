"""How hard is a chaotic atmosphere pushed? Its forcing from one window of 99,000 numbers.

Lorenz's model of 1996 with two scales: 36 slow variables on a ring, 360 fast ones that ride on
them, and a constant forcing F = √(F₁² + F₂²). Nothing but F can be told from the data, so that the
posterior of (F₁, F₂) is a ring. What the encoder sees is one window of 25 time units, 250 states of
396 numbers, taken from anywhere in a longer simulation and turned by any number of places.
"""

import torch

import eande
from eande.networks.lorenz96 import SmallRingEncoder
from eande.simulators.lorenz96 import Lorenz96

title = "Lorenz 96: the forcing from one window"

simulator = Lorenz96(observations=600)
prior = simulator.prior
views = eande.Compose(eande.RandomWindow(250), eande.Roll(sections=(36, 360)))
# Made by observation.py: a window of a simulation with (F₁, F₂) = (6, −8), so F = 10.
observed = "window.npz"

n = 600
held_out = 0.2
with torch.random.fork_rng():
    torch.manual_seed(0)
    encoder = SmallRingEncoder(64)
settings = eande.FitSettings(
    similarity=eande.Cosine(),
    embedding_dimension=64,
    width=256,
    blocks=3,
    normalization="layer",
    # Few simulations, each seen through many windows: the emulator would learn them by heart.
    repulsion="encoder",
    epochs=110,
    batch_size=125,
    learning_rate=2e-3,
    ema=0.98,
    validate_every=5,
    # The paper's encoder, a ResNet-34, and hundreds of epochs more are for a GPU.
    device="cpu",
)
derived = {"F": lambda values: (values["F1"] ** 2 + values["F2"] ** 2) ** 0.5}
