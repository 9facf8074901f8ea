"""How much work a run of the Lorenz 96 study is: which networks, and how closely looked at."""

from dataclasses import dataclass

from eande.foundations.checks import check_choice

# Stored states that the encoder sees, and windows of each simulation held out.
WINDOW = 250
WINDOWS = 4


@dataclass(frozen=True)
class Size:
    """How much work a run is; what the methods of a comparison get is in its terms.

    Args:
        encoder: ``"resnet34"`` (the paper's), ``"resnet18"`` (half as many channels) or
            ``"small"``, for many runs or few cores.
        width: hidden features of the emulator.
        blocks: of the emulator.
        test: simulations to evaluate on, a window of each.
        fresh: further ones to measure coverage by.
        observations: stored states per simulation.
        samples: per posterior.
        draws: of the prior, per posterior.
        finer: a pixel of a picture is the mean over this many points a side.
        most_simulations: that a method may get, whatever the terms say; likewise the next two.
        most_validation: simulations held out.
        most_steps: of training.
    """

    encoder: str = "resnet34"
    width: int = 512
    blocks: int = 5
    test: int = 200
    fresh: int = 4_000
    observations: int = 2_000
    samples: int = 2_000
    draws: int = 1_000_000
    finer: int = 5
    most_simulations: int = 1_000_000
    most_validation: int = 1_000_000
    most_steps: int = 1_000_000


SIZES = {
    "paper": Size(),
    "small": Size(encoder="small", width=256, blocks=3, test=100, fresh=1_000, draws=200_000),
    "smoke": Size(
        encoder="resnet18",
        test=4,
        fresh=24,
        samples=200,
        draws=20_000,
        finer=1,
        most_simulations=60,
        most_validation=20,
        most_steps=8,
    ),
    "toy": Size(
        encoder="small",
        width=32,
        blocks=1,
        test=3,
        fresh=20,
        observations=260,
        samples=100,
        draws=1_000,
        finer=1,
        most_simulations=24,
        most_validation=12,
        most_steps=2,
    ),
}


def choose_size(name: str) -> Size:
    """Return the size of that name."""
    check_choice("size", name, list(SIZES))
    return SIZES[name]
