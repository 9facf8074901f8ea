"""The result file of the common benchmark."""

from dataclasses import dataclass
from typing import Any, Literal

from eande.foundations.checks import InputError, check_choice, check_count
from eande.simulators.sbibm import TASKS
from eande.studies.schema import check_keys, check_list, check_numbers, check_some

BUDGETS = (1_000, 10_000, 100_000)


@dataclass
class Run:
    """One task at one number of simulations."""

    task: str
    simulations: int
    seed: int
    seconds_training: float
    scores: list[float]
    median: float
    samples: int
    resampled: list[int]
    rescored: dict[str, float]

    def __post_init__(self) -> None:
        check_choice("task", self.task, list(TASKS))
        check_count("simulations", self.simulations, 1)
        check_list("scores", self.scores)
        check_numbers("numbers", [self.seconds_training, self.median, *self.rescored.values()])
        numbers = [str(number) for number in range(1, len(self.scores) + 1)]
        for number in self.rescored:
            if number not in numbers:
                raise InputError(
                    f"rescored: expected numbers of observations up to {len(self.scores)}, "
                    f"got {number[:20]!r}"
                )


@dataclass
class Published:
    """The medians that sbibm published, one for each number of simulations."""

    NRE: list[float]
    NPE: list[float]

    def __post_init__(self) -> None:
        if not len(self.NRE) == len(self.NPE) == len(BUDGETS):
            raise InputError(f"expected {len(BUDGETS)} medians, got another number of them")


@dataclass
class SbibmResults:
    """``sbibm.json``."""

    study: Literal["sbibm"]
    size: str
    settings: dict[str, Any]
    published: dict[str, Published]
    runs: list[Run]

    def __post_init__(self) -> None:
        check_some("runs", self.runs)
        check_keys("published", self.published, {run.task for run in self.runs})
