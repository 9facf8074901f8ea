"""The result files of the Lorenz 96 study, one kind for each part of it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from eande.diagnostics.diagnose import LEVELS
from eande.foundations.checks import InputError, check_choice, check_count, check_positive
from eande.studies.lorenz96.baselines import BASELINES
from eande.studies.lorenz96.comparisons import searched_kinds
from eande.studies.lorenz96.recipes import Recipe
from eande.studies.lorenz96.sizes import SIZES, Size
from eande.studies.lorenz96.terms import Terms
from eande.studies.schema import (
    Provenance,
    check_keys,
    check_labels,
    check_list,
    check_numbers,
    check_some,
)

# Of the tables whose terms were not equal: they had names of their own.
OLDER_METHODS = ("plain", "anchored", "calibrated", "aimed", "ensemble")


@dataclass
class Record:
    """One validation during training."""

    epoch: int
    held_out_log_ratio: float
    cv_normalizer: float | None = None

    def __post_init__(self) -> None:
        check_numbers("epoch", [self.epoch])
        check_numbers("held_out_log_ratio", [self.held_out_log_ratio])
        check_numbers("cv_normalizer", [self.cv_normalizer or 0.0])


@dataclass
class Trained:
    """A run: a model that was trained."""

    seed: int
    history: list[Record]

    def __post_init__(self) -> None:
        check_some("history", self.history)


@dataclass
class Measured(Trained):
    """A run whose posteriors were compared with the reference."""

    mean_log_ratio: float
    radial_z_rms: float
    coverage: dict[str, float]
    fewest_effective_draws: float
    per_datum: dict[str, list[float]]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers("mean_log_ratio", [self.mean_log_ratio])
        check_numbers("radial_z_rms", [self.radial_z_rms])
        check_numbers("fewest_effective_draws", [self.fewest_effective_draws])
        _check_coverage(self.coverage)
        check_labels("per_datum", self.per_datum)
        for name, values in self.per_datum.items():
            check_list(f"per_datum.{name}", values)

    def check_measures(self, samples: int) -> None:
        """Refuse a run without one of the measures that tables show."""
        check_keys("per_datum", self.per_datum, _measures(samples))


def _measures(samples: int) -> Iterator[str]:
    yield from ("angular_tv", "angular_tv_floor", "radial_error", "crps", "z")
    yield from _distances(samples)


def _distances(samples: int) -> Iterator[str]:
    for kind in ("mmd2", "mmd2_floor"):
        yield from (f"{kind}_0.01_100", f"{kind}_0.05_100", f"{kind}_0.05_{samples}")


def _check_coverage(coverage: dict[str, float]) -> None:
    check_keys("coverage", coverage, map(str, LEVELS))
    check_labels("coverage", coverage)
    for level, share in coverage.items():
        if not 0 <= share <= 1:
            raise InputError(f"coverage.{level}: expected a share from 0 to 1, got {share:g}")


@dataclass
class Physics:
    """How well budgets of a window give F."""

    median_radial_error_of_energy: float
    median_radial_error_of_momentum: float

    def __post_init__(self) -> None:
        check_numbers("median_radial_error_of_energy", [self.median_radial_error_of_energy])
        check_numbers("median_radial_error_of_momentum", [self.median_radial_error_of_momentum])


@dataclass
class Calibrated:
    """What calibration found."""

    exponent: float

    def __post_init__(self) -> None:
        check_numbers("exponent", [self.exponent])


@dataclass
class Region:
    """How often regions cover the truth, over some of the fresh data."""

    coverage: dict[str, float]
    radial_z_rms: float

    def __post_init__(self) -> None:
        _check_coverage(self.coverage)
        check_numbers("radial_z_rms", [self.radial_z_rms])


@dataclass
class Recovery:
    """Whether the mean posterior gives back the prior."""

    p_value_of_counts: float
    p_value_of_radii: float


@dataclass
class Calibration:
    """What fresh data say about a model."""

    regions: dict[str, Region]
    prior_recovery: Recovery

    def __post_init__(self) -> None:
        check_labels("regions", self.regions)


@dataclass
class MainRun(Measured):
    """One method with one seed."""

    method: str
    settings: dict[str, Any]
    physics: Physics
    calibrated: Calibrated | None = None
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("method", self.method, [*OLDER_METHODS, *BASELINES])


@dataclass
class MainSettings:
    """What the page says of the settings."""

    simulations: int
    validation: int
    calibration: int
    encoder: str
    samples: int
    b: float

    def __post_init__(self) -> None:
        check_labels("encoder", [self.encoder])
        check_count("samples", self.samples, 1)


@dataclass
class MainResults:
    """``lorenz96-main.json``, and ``lorenz96-printed.json`` for the system as printed."""

    study: Literal["lorenz96-main", "lorenz96-printed"]
    size: str
    device: Literal["cpu", "cuda"]
    settings: MainSettings
    runs: list[MainRun]

    def __post_init__(self) -> None:
        check_some("runs", self.runs)
        for run in self.runs:
            run.check_measures(self.settings.samples)


@dataclass
class VariantSettings:
    """What the page says of the settings."""

    samples: int
    variants: dict[str, dict[str, Any]]

    def __post_init__(self) -> None:
        check_count("samples", self.samples, 1)
        check_labels("variants", self.variants)


@dataclass
class TrainedVariant(Trained):
    """One variant with one seed."""

    variant: str
    method: str


@dataclass
class MeasuredVariant(Measured):
    """One variant with one seed, measured."""

    variant: str
    method: str


@dataclass
class AblationResults:
    """``lorenz96-views.json`` and ``lorenz96-symmetry.json``."""

    study: Literal["lorenz96-views", "lorenz96-symmetry"]
    size: str
    device: Literal["cpu", "cuda"]
    settings: VariantSettings
    runs: list[MeasuredVariant]

    def __post_init__(self) -> None:
        _check_variants(self.settings, self.runs)
        for run in self.runs:
            run.check_measures(self.settings.samples)


@dataclass
class TrainedResults:
    """``lorenz96-normalizer.json``."""

    study: Literal["lorenz96-normalizer"]
    size: str
    device: Literal["cpu", "cuda"]
    settings: VariantSettings
    runs: list[TrainedVariant]

    def __post_init__(self) -> None:
        _check_variants(self.settings, self.runs)
        lengths: dict[str, int] = {}
        for run in self.runs:
            if any(record.cv_normalizer is None for record in run.history):
                raise InputError("history: expected a cv_normalizer in every record, got none")
            length = lengths.setdefault(run.variant, len(run.history))
            if len(run.history) != length:
                raise InputError(
                    f"history: expected {length} records in every run of {run.variant}, "
                    f"got {len(run.history)}"
                )


def _check_variants(
    settings: VariantSettings, runs: list[MeasuredVariant] | list[TrainedVariant]
) -> None:
    check_some("runs", runs)
    check_keys("settings.variants", settings.variants, [run.variant for run in runs])
    check_labels("method", [run.method for run in runs])


@dataclass
class ThroughSbi:
    """How long sbi takes."""

    seconds: float
    phis: int
    seconds_unchunked: float | None = None

    def __post_init__(self) -> None:
        check_count("phis", self.phis, 1)
        _check_times("seconds", [self.seconds, self.seconds_unchunked])


@dataclass
class TimingResults:
    """``lorenz96-timing.json``; what has not been measured yet is None."""

    study: Literal["lorenz96-timing"]
    size: str
    device: Literal["cpu", "cuda"]
    settings: dict[str, Any]
    provenance: Provenance
    seconds: float
    parameters: dict[str, int] = field(default_factory=dict)
    seconds_as_it_is: float | None = None
    seconds_recorded: float | None = None
    seconds_by_number_of_phi: dict[str, float] | None = None
    nre_c: ThroughSbi | None = None
    npe_c: ThroughSbi | None = None

    def __post_init__(self) -> None:
        check_labels("parameters", self.parameters)
        _check_times("seconds_as_it_is", [self.seconds_as_it_is])
        _check_times("seconds_recorded", [self.seconds_recorded])
        if self.seconds_by_number_of_phi is not None:
            check_some("seconds_by_number_of_phi", self.seconds_by_number_of_phi)
            _check_times("seconds_by_number_of_phi", self.seconds_by_number_of_phi.values())
            for number in self.seconds_by_number_of_phi:
                if not (number.isascii() and number.isdecimal() and 0 < int(number[:20]) < 1e15):
                    raise InputError(
                        f"seconds_by_number_of_phi: expected numbers of φ, got {number[:20]!r}"
                    )


@dataclass
class TrainingSettings:
    """What the page says of the settings."""

    epochs: int


@dataclass
class TrainingResults:
    """``lorenz96-training.json``; what has not been measured yet is None."""

    study: Literal["lorenz96-training"]
    size: str
    device: Literal["cpu", "cuda"]
    settings: TrainingSettings
    provenance: Provenance
    seconds: float
    seconds_with_one_view: float | None = None
    seconds_with_two_views: float | None = None

    def __post_init__(self) -> None:
        _check_times("seconds", [self.seconds_with_one_view, self.seconds_with_two_views])


def _check_times(name: str, times: Any) -> None:
    for seconds in times:
        if seconds is not None:
            check_positive(name, seconds)
            check_numbers(name, [seconds])


# What tables and figures read of every datum of a compared run, beside MMD² of all its samples.
MEASURES = (
    "log_ratio",
    "z",
    "crps",
    "radial_error",
    "angular_tv",
    "mmd2_0.01_100",
    "mmd2_0.05_100",
)


@dataclass
class Settings:
    """How a run was made: by which recipe, under which terms, at which size."""

    recipe: Recipe
    terms: Terms
    size: Size

    def __post_init__(self) -> None:
        check_labels("settings.recipe", self.recipe.settings)
        check_labels("settings.recipe", map(str, self.recipe.settings.values()))
        check_labels("settings.size", [self.size.encoder])
        check_count("settings.size.samples", self.size.samples, 1)


@dataclass
class ComparedRun:
    """A row of a comparison with one seed; what failed to train was not measured."""

    size: str
    method: str
    b: float
    simulations: int
    calibration: str
    seed: int
    trial: str
    settings: Settings
    history: list[Record]
    score: float
    seconds_training: float
    failed: str | None = None
    parameters: int = 0
    medians: dict[str, float] = field(default_factory=dict)
    exponent: float | None = None
    mean_log_ratio: float | None = None
    radial_z_rms: float | None = None
    coverage: dict[str, float] = field(default_factory=dict)
    fresh: Calibration | None = None
    physics: Physics | None = None
    per_datum: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("size", self.size, list(SIZES))
        check_labels("method", [self.method, self.trial, self.calibration])
        check_numbers("score", [self.score, self.b])
        check_labels("per_datum", self.per_datum)
        for name, values in self.per_datum.items():
            check_list(f"per_datum.{name}", values)
        if self.failed is None:
            check_some("history", self.history)
            check_numbers("mean_log_ratio", [self.mean_log_ratio or 0.0])
            samples = self.settings.size.samples
            check_keys("medians", self.medians, ["angular_tv", *_distances(samples)])
            check_numbers("medians", self.medians.values())
        if self.failed is None and not self.trial:
            check_keys("per_datum", self.per_datum, [*MEASURES, f"mmd2_0.05_{samples}"])


@dataclass
class ComparisonResults:
    """``lorenz96-<comparison>.json``, and ``lorenz96-search.json``."""

    study: Literal[
        "lorenz96-paper",
        "lorenz96-selection",
        "lorenz96-best",
        "lorenz96-calibrated",
        "lorenz96-weights",
        "lorenz96-losses",
        "lorenz96-bank",
        "lorenz96-ladder",
        "lorenz96-removed",
        "lorenz96-efficiency",
        "lorenz96-search",
    ]
    device: Literal["cpu", "cuda"]
    runs: list[ComparedRun]

    def __post_init__(self) -> None:
        check_some("runs", self.runs)
        for run in self.runs:
            if self.study == "lorenz96-search":
                check_choice("method", run.method, list(searched_kinds()))
            elif run.size != self.runs[0].size:
                raise InputError(
                    f"runs: expected all of size {self.runs[0].size}, got one of size {run.size}"
                )


# By the part of the study, which names the file: lorenz96-<part>.json.
KINDS: dict[str, type] = {
    "main": MainResults,
    "printed": MainResults,
    "timing": TimingResults,
    "training": TrainingResults,
    "views": AblationResults,
    "symmetry": AblationResults,
    "normalizer": TrainedResults,
    "weights": ComparisonResults,
    "losses": ComparisonResults,
    "paper": ComparisonResults,
    "selection": ComparisonResults,
    "best": ComparisonResults,
    "calibrated": ComparisonResults,
    "bank": ComparisonResults,
    "ladder": ComparisonResults,
    "removed": ComparisonResults,
    "efficiency": ComparisonResults,
    "search": ComparisonResults,
}
