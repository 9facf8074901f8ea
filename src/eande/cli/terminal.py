"""What the commands share: a console, and errors of the user said in one line."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

console = Console()


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Say what the user can get wrong, or has not installed, without a traceback."""
    from eande.foundations.checks import InputError
    from eande.simulation.run.blocks import SimulationError

    try:
        yield
    except (InputError, ImportError, SimulationError) as error:
        raise typer.BadParameter(str(error)) from None
