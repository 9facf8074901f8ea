"""How much memory a piece of work takes."""

import math
import threading
from pathlib import Path

_STATUS = Path("/proc/self/status")


class PeakAnonymous:
    """The largest anonymous resident memory of this process while it is watched.

    In MB above what it was at the start; NaN where there is no /proc, as on macOS.

    Args:
        interval: seconds between two looks.
    """

    def __init__(self, interval: float = 0.002) -> None:
        self._interval = interval

    def __enter__(self) -> "PeakAnonymous":
        """Begin to watch."""
        self.start = self.peak = self._now()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(self._interval):
            self.peak = max(self.peak, self._now())

    @staticmethod
    def _now() -> float:
        if _STATUS.exists():
            for line in _STATUS.read_text().splitlines():
                if line.startswith("RssAnon"):
                    return int(line.split()[1]) / 1_000
        return math.nan

    @property
    def above(self) -> float:
        """Peak above the start."""
        return self.peak - self.start
