"""The result file of the common benchmark."""

from dataclasses import dataclass, field
from typing import Any, Literal

from eande.foundations.checks import InputError, check_choice, check_count
from eande.simulators.sbibm import TASKS
from eande.studies.sbibm.published import BUDGETS
from eande.studies.schema import check_keys, check_list, check_numbers, check_some


@dataclass
class Run:
    """One method on one task at one number of simulations, with one seed.

    Args:
        method: ``"eande"``, or ``"npe"`` for that of sbi.
        task: its name.
        simulations: how many it learned from.
        seed: of simulations and networks.
        seconds_training: of the fit alone.
        peak_mb: memory of the fit above that before it.
        scores: one for each observation.
        median: of them.
        samples: per score.
        resampled: numbers of the observations whose samples are not what was asked for, because
            sampling ran out of its budget: prior draws by weight for E&E, samples outside the
            prior's support for NPE.
    """

    task: str
    simulations: int
    seed: int
    seconds_training: float
    scores: list[float]
    median: float
    samples: int
    method: Literal["eande", "npe"] = "eande"
    peak_mb: float | None = None
    resampled: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_choice("task", self.task, list(TASKS))
        check_count("simulations", self.simulations, 1)
        check_list("scores", self.scores)
        check_numbers("numbers", [self.seconds_training, self.median, self.peak_mb or 0])


@dataclass
class SbibmResults:
    """``sbibm.json``."""

    study: Literal["sbibm"]
    size: str
    settings: dict[str, Any]
    published: dict[str, dict[str, list[float | None]]]
    runs: list[Run]

    def __post_init__(self) -> None:
        check_some("runs", self.runs)
        check_keys("published", self.published, {run.task for run in self.runs})
        for methods in self.published.values():
            for medians in methods.values():
                if len(medians) != len(BUDGETS):
                    raise InputError(
                        f"published: expected {len(BUDGETS)} medians, got {len(medians)}"
                    )
