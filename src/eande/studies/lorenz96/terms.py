"""The terms of a comparison: what every method in it gets.

Data, networks' inputs and the choice of weights are made from these numbers alone, so that no
method of a comparison can have more simulations, other views or another selection than the others.
What a method may choose for itself is in its recipe (:mod:`eande.studies.lorenz96.recipes`).
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from eande.foundations.checks import check_choice, check_count
from eande.simulation.simulate import DESIGNS
from eande.studies.lorenz96.sizes import Size

# One constant exponent of all posteriors: none; from simulations left out by five fold models each;
# from further simulations, which are used for nothing else.
CALIBRATIONS = ("none", "cross-fitted", "fresh")


@dataclass(frozen=True)
class Terms:
    """What every method of a comparison gets.

    Args:
        b: the ratio of amplitudes of the system: 10 as cited, 1 as printed.
        simulations: to train on.
        validation: simulations held out, several windows of each, to select weights by.
        design: of the parameters: ``"random"`` draws of the prior, or ``"even"``.
        turned: whether the encoder sees the ring turned at random.
        select_by: the score of held-out pairs that picks the weights: ``"log_ratio"``, its mean, or
            ``"density"``, the paper's sum of posterior densities.
        looks: at the held-out pairs during training, evenly spaced.
        calibration: one of ``CALIBRATIONS``.

    Example:
        >>> Terms(b=1.0, turned=True).describe()["turned"]
        True
    """

    b: float = 10.0
    simulations: int = 500
    validation: int = 50
    design: str = "random"
    turned: bool = False
    select_by: str = "log_ratio"
    looks: int = 50
    calibration: str = "none"

    def __post_init__(self) -> None:
        check_count("simulations", self.simulations, 1)
        check_count("validation", self.validation, 1)
        check_count("looks", self.looks, 1)
        check_choice("design", self.design, DESIGNS)
        check_choice("select_by", self.select_by, ("log_ratio", "density"))
        check_choice("calibration", self.calibration, CALIBRATIONS)

    def at(self, size: Size) -> Self:
        """Return the terms of a size, which may allow for fewer simulations."""
        return replace(
            self,
            simulations=min(self.simulations, size.most_simulations),
            validation=min(self.validation, size.most_validation),
        )

    def describe(self) -> dict[str, Any]:
        """Return all of them, for result files."""
        return asdict(self)


def validate_every(epochs: int, looks: int) -> int:
    """Return how many epochs lie between looks, of which there are at most so many.

    Example:
        >>> validate_every(75, looks=50)
        2
    """
    return math.ceil(epochs / looks)


def epochs_of(steps: int, simulations: int, batch_size: int) -> int:
    """Return how many passes over the simulations have about so many steps, one at least.

    Example:
        >>> epochs_of(600, simulations=500, batch_size=125)
        150
    """
    return max(1, round(steps / math.ceil(simulations / batch_size)))
