"""What the commands share: a console, errors of the user said in one line, and a clean end."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer
from rich.console import Console

console = Console()


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Say what the user can get wrong, or has not installed, without a traceback.

    SIGTERM, by which batch systems stop a job, ends the block as Ctrl-C does: processes are ended,
    files closed, and what is complete is kept.
    """
    from eande.foundations.checks import InputError
    from eande.foundations.files import StorageError
    from eande.simulation.run.blocks import SimulationError

    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    except (InputError, ImportError, SimulationError, StorageError) as error:
        raise typer.BadParameter(str(error)) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(number: int, _: FrameType | None) -> None:
    # The exit code by which shells tell that a signal ended a process.
    raise SystemExit(128 + number)
