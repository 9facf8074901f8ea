"""The result files of the synthetic study."""

from dataclasses import astuple, dataclass
from typing import Literal

from eande.foundations.checks import InputError
from eande.studies.schema import Provenance, check_list, check_numbers, check_some

# (κ, redundant): the median L1 over 50 test data, as printed in the paper.
PAPER_L1 = {(2, False): 0.032, (8, False): 0.041, (2, True): 0.049, (8, True): 0.055}


@dataclass
class RunSize:
    """How much work a run was."""

    simulations: int
    epochs: int


@dataclass
class Run:
    """One task with one seed."""

    kappa: int
    redundant: bool
    seed: int
    size: RunSize
    l1: list[float]
    l1_median: float
    r2_f: float
    r2_g: float
    cv_normalizer: float
    held_out_log_ratio: float
    information: float
    sampling_p_value: float
    seconds: float
    redundant_sensitivity: float | None = None

    def __post_init__(self) -> None:
        if (self.kappa, self.redundant) not in PAPER_L1:
            raise InputError(f"kappa: expected one of the study's tasks, got {self.kappa}")
        check_list("l1", self.l1)
        if self.redundant and self.redundant_sensitivity is None:
            raise InputError("redundant_sensitivity: expected a number, got none")
        check_numbers("numbers", [value for value in astuple(self) if isinstance(value, float)])


@dataclass
class Row:
    """A row of the table: one task, all seeds."""

    kappa: int
    redundant: bool
    paper_l1: float
    l1_median: float
    l1_median_of_each_seed: list[float]
    smallest_r2: float
    largest_cv_normalizer: float
    largest_redundant_sensitivity: float | None
    smallest_sampling_p_value: float
    trapped: int
    runs: int


@dataclass
class Settings:
    """What readers ask of the settings."""

    batch_size: int


@dataclass
class SyntheticResults:
    """``synthetic.json``, and ``synthetic-paper.json`` for the paper's method."""

    study: Literal["synthetic", "synthetic-paper"]
    size: str
    settings: Settings
    processes: int
    seconds: float
    provenance: Provenance
    cells: list[Row]
    runs: list[Run]

    def __post_init__(self) -> None:
        check_some("cells", self.cells)
        check_some("runs", self.runs)
