"""How much work a run of the Lorenz 96 study is."""

from dataclasses import dataclass

from eande.foundations.checks import check_choice

# Stored states that the encoder sees, and windows of each simulation held out.
WINDOW = 250
WINDOWS = 4


@dataclass(frozen=True)
class Size:
    """How much work a run is.

    Args:
        simulations: to train on.
        validation: to select by, several windows each.
        calibration: to calibrate by, several windows each.
        test: to evaluate.
        fresh: further ones to measure coverage by.
        observations: stored states per simulation.
        encoder: ``"resnet34"`` (the paper's), ``"resnet18"`` (half as many channels) or
            ``"small"``, for CPUs.
        epochs: of training; baselines on a small encoder get fewer, so that they take as long.
        batch_size: pairs per step.
        samples: per posterior.
        draws: of the prior, per posterior.
        finer: a pixel of a picture is the mean over this many points a side.
    """

    simulations: int = 500
    validation: int = 50
    calibration: int = 500
    test: int = 200
    fresh: int = 4_000
    observations: int = 2_000
    encoder: str = "resnet34"
    epochs: int = 2_000
    batch_size: int = 500
    samples: int = 2_000
    draws: int = 2_000_000
    finer: int = 5


SIZES = {
    "paper": Size(),
    "smoke": Size(
        simulations=60,
        validation=20,
        calibration=40,
        test=4,
        fresh=24,
        encoder="resnet18",
        epochs=8,
        batch_size=60,
        samples=200,
        draws=20_000,
        finer=1,
    ),
    "small": Size(
        calibration=50,
        test=50,
        fresh=0,
        encoder="small",
        epochs=450,
        batch_size=125,
        draws=100_000,
        finer=2,
    ),
    "demo": Size(
        calibration=50,
        test=20,
        fresh=0,
        observations=600,
        encoder="small",
        epochs=110,
        batch_size=125,
        draws=100_000,
        finer=2,
    ),
    "toy": Size(
        simulations=24,
        validation=12,
        calibration=20,
        test=3,
        fresh=20,
        observations=260,
        encoder="small",
        epochs=2,
        batch_size=24,
        samples=100,
        draws=1_000,
        finer=1,
    ),
}


def choose_size(name: str) -> Size:
    """Return the size of that name."""
    check_choice("size", name, list(SIZES))
    return SIZES[name]
