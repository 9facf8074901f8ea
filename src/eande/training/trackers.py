"""Experiment trackers: TensorBoard, MLflow, Weights & Biases and whatever else follows a fit.

A tracker is any object with the methods of sbi's protocol that a fit needs: sbi's own, such as
``sbi.utils.tracking.TensorBoardTracker(SummaryWriter("runs"))``, are taken as they are.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from eande.foundations.checks import InputError, calling, show
from eande.training.state import Record


@runtime_checkable
class Tracker(Protocol):
    """Where the numbers of an experiment go."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Note numbers by name at a step."""

    def log_params(self, params: dict[str, Any]) -> None:
        """Note settings by name."""

    def flush(self) -> None:
        """Write down what was noted."""


def as_tracked(tracker: Any) -> "Tracked | None":
    """Return what tells a tracker of a fit, None where there is none."""
    if tracker is None:
        return None
    if isinstance(tracker, type) or not isinstance(tracker, Tracker):
        raise InputError(
            "tracker: expected an object with log_metrics, log_params and flush, such as "
            f"sbi.utils.tracking.TensorBoardTracker, got {show(tracker)}"
        )
    return Tracked(tracker)


class Tracked:
    """Tells a tracker of a run.

    Args:
        tracker: the user's.
        prefix: of all names, where a fit consists of several runs.
    """

    def __init__(self, tracker: Tracker, prefix: str = "") -> None:
        self.tracker = tracker
        self.prefix = prefix

    def of(self, kind: str, number: int) -> "Tracked":
        """Return what tells the same tracker of one run among several."""
        return Tracked(self.tracker, f"{self.prefix}{kind}-{number}/")

    def losses(self, step: int, losses: Mapping[str, Tensor]) -> None:
        """Tell of the parts of the loss, a number for each of the steps up to this one."""
        columns = {name: values.tolist() for name, values in losses.items()}
        count = len(next(iter(columns.values()), []))
        for i in range(count):
            numbers = {name: values[i] for name, values in columns.items()}
            self._metrics(numbers, step - count + 1 + i)

    def record(self, record: Record, known: Mapping[str, Any]) -> None:
        """Tell of a validation: all of its record but what is known of every step."""
        left_out = {"epoch", "step", *known}
        numbers = {name: value for name, value in record.items() if name not in left_out}
        self._metrics(numbers, int(record["step"]))

    def settings(self, settings: Mapping[str, Any]) -> None:
        """Tell of settings by name."""
        named = {f"{self.prefix}{name}": value for name, value in settings.items()}
        self._call(partial(self.tracker.log_params, named), "settings")

    def flush(self) -> None:
        """Have all of it written down."""
        self._call(self.tracker.flush, "flush")

    def _metrics(self, numbers: Mapping[str, float], step: int) -> None:
        named = {f"{self.prefix}{name}": float(value) for name, value in numbers.items()}
        self._call(partial(self.tracker.log_metrics, named, step=step), step)

    def _call(self, call: Callable[[], None], at: object) -> None:
        with calling("tracker", call, at=at):
            call()
