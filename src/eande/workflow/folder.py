"""The folder of a run: what lies where, and which step made it from what.

::

    runs/<study>/
        run.json            which steps were taken, from what, when; the layout's number
        simulations.zarr/   a store, which any Zarr reader opens
        training/<digest>/  checkpoints, a folder for each different call of fit
        model.eande         safetensors and JSON
        calibration/<digest>.zarr/  simulations that calibrate the model, and nothing else
        calibrated.eande    the model calibrated, which the steps after it take
        calibration.json
        samples/            <observation>.nc (NetCDF) and <observation>.json
        predicted/<digest>/ stores of simulations from the posterior, one for each model
        diagnosis.json
        report.html, report.json
        rounds/             the folder of another run: that of simulations in rounds

Every file is written in one step. A step whose inputs have not changed is not taken again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from eande.foundations.checks import InputError
from eande.foundations.documents import as_document, as_json
from eande.foundations.files import digest_file, read_json, write_json
from eande.foundations.locks import locked
from eande.foundations.paths import as_path
from eande.workflow.study import Study

LAYOUT = 1
# The figure of a step that is a digest of what it wrote, and nothing for people.
DIGEST = "digest"
_RECORD = "run.json"
# A record is read and written in far less.
_SECONDS_TO_LOCK = 60.0


@dataclass
class StepRecord:
    """One step that was taken.

    Args:
        date: when it ended.
        inputs: a digest of all that its result depends on.
        command: that took it.
        figures: what it found, for people.
    """

    date: str
    inputs: str
    command: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass
class RunRecord:
    """The document ``run.json``.

    Args:
        layout: the number of this layout.
        study: the study file.
        steps: those taken, by name.
    """

    layout: int
    study: str
    steps: dict[str, StepRecord] = field(default_factory=dict)


class RunFolder:
    """The folder of a run.

    Args:
        path: of the folder; it is made when the first step is taken.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = path / "simulations.zarr"
        self.model = path / "model.eande"
        self.calibrated = path / "calibrated.eande"
        self.calibration = path / "calibration.json"
        self.samples = path / "samples"
        self.diagnosis = path / "diagnosis.json"
        self.report = path / "report.html"

    def training(self, inputs: str) -> Path:
        """Return the folder of the checkpoints of a fit with those inputs."""
        return self.path / "training" / inputs

    def fresh(self, inputs: str) -> Path:
        """Return the store of simulations by that simulator and prior for the calibration alone."""
        return self.path / "calibration" / f"{inputs}.zarr"

    def predicted(self, inputs: str) -> Path:
        """Return the store of simulations from the posterior of that model and observation."""
        return self.path / "predicted" / f"{inputs}.zarr"

    def model_in_use(self) -> Path:
        """Return the model that samples are of: calibrated, if the one that was fitted last is."""
        step = self.step("calibrate")
        if step is None or not self.calibrated.exists() or not self.model.exists():
            return self.model
        is_of_it = step.figures.get("model") == digest_file(self.model)
        return self.calibrated if is_of_it else self.model

    def record(self) -> RunRecord | None:
        """Return what is known of the run; None where no step was taken yet."""
        path = self.path / _RECORD
        if not path.exists():
            return None
        try:
            return _read_record(path)
        except _Newer:
            raise
        except InputError as error:
            raise InputError(
                f"{error}; without it the same commands go on from what lies beside it, so move "
                "it away, or take another folder by --run FOLDER"
            ) from None

    def step(self, name: str) -> StepRecord | None:
        """Return the record of a step; None where it was not taken."""
        record = self.record()
        return None if record is None else record.steps.get(name)

    def is_done(self, name: str, inputs: str, *files: Path) -> bool:
        """Return whether a step was taken with those inputs, and what it made is there."""
        step = self.step(name)
        return step is not None and step.inputs == inputs and all(file.exists() for file in files)

    def remember(
        self, study: Study, name: str, inputs: str, *, command: str, figures: Mapping[str, Any]
    ) -> None:
        """Write down that a step was taken."""
        with locked(
            self.path / ".record.lock",
            seconds=_SECONDS_TO_LOCK,
            busy=f"{self.path}: expected a folder that nobody else is writing to",
        ):
            record = self.record() or RunRecord(LAYOUT, str(study.path))
            record.study = str(study.path)
            date = datetime.now(UTC).isoformat(timespec="seconds")
            record.steps[name] = StepRecord(date, inputs, command, dict(figures))
            write_json(self.path / _RECORD, as_json(record))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep others from taking a step in this folder meanwhile."""
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(
            self.path / ".lock",
            seconds=0,
            busy=f"{self.path}: another eande command is at work there; wait for it to end",
        ):
            yield


def run_folder(study: Study, given: str | Path | None = None) -> RunFolder:
    """Return the folder of a study's run: ``runs/<study>`` beside the file, or the given one.

    Args:
        study: whose run.
        given: another folder.
    """
    if given is not None:
        path = as_path("run", given, kind="folder")
    else:
        path = study.path.parent / "runs" / study.name
    if path.exists() and not path.is_dir():
        raise InputError(f"run: expected a folder, got the file {path}")
    return RunFolder(path)


class _Newer(InputError):
    """A record was written by a newer eande."""


def _read_record(path: Path) -> RunRecord:
    """Read ``run.json``."""
    content = read_json(path, "the record of a run")
    layout = content.get("layout")
    # Before anything else: another layout has other fields.
    if isinstance(layout, int) and layout > LAYOUT:
        raise _Newer(
            f"{path}: expected a run of layout {LAYOUT}, got {layout!r}: it was made by a newer "
            "eande; --run FOLDER takes another folder"
        )
    if layout != LAYOUT:
        raise InputError(
            f"{path}: expected a run of layout {LAYOUT}, got {layout!r}: it is damaged"
        )
    return as_document(path, content, RunRecord)
