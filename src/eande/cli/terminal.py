"""What the commands share: a console, options, errors of the user in one line, a clean end.

Exit codes: 0, done; 1, it could not be done (a simulator that fails, a full disk, a library that is
not installed); 2, what was given is wrong; 130 and 143, stopped by Ctrl-C and by SIGTERM.
"""

import json
import shlex
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

console = Console()

# Python's words for JSON's.
_WORDS = {"True": "true", "False": "false", "None": "null"}

StudyFile = Annotated[Path, typer.Argument(metavar="STUDY", help="A study file, such as study.py.")]
RunOption = Annotated[
    Path | None,
    typer.Option("--run", file_okay=False, help="Folder of the run; else runs/<study> beside it."),
]
RedoOption = Annotated[
    Literal["damaged", "failed"] | None,
    typer.Option("--redo", help="Simulate again what is damaged in the store, or what failed."),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print a JSON document, for machines, and no progress bars.")
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Print the whole trace of an error.")]
SettingsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Settings of the fit, such as max_steps=3000."),
]


@contextmanager
def errors_in_one_line(*, debug: bool | None = None) -> Iterator[None]:
    """Say what the user can get wrong, or has not installed, in one line, and warnings likewise.

    SIGTERM, by which batch systems stop a job, ends the block as Ctrl-C does: processes are ended,
    files closed, and what is complete is kept. It must not raise SystemExit, which in a simulator
    of the user's is a failed simulation.

    Args:
        debug: whether to show where an error arose instead; None where a command cannot be asked
            to: what nobody expected then keeps its trace.
    """
    from eande.foundations.checks import InputError, UserCodeError
    from eande.foundations.files import StorageError
    from eande.simulation.run.blocks import SimulationError

    ended_by = [signal.SIGINT]

    def end(number: int, _: FrameType | None) -> None:
        ended_by[0] = signal.Signals(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            yield
    except (InputError, ImportError, SimulationError, StorageError, UserCodeError) as error:
        if debug:
            raise
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, InputError) else 1) from None
    except Exception as error:
        if debug is not False:
            raise
        said = " ".join(str(error).split())
        typer.echo(f"Error: {type(error).__name__}: {said} (--debug shows where)", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt as stopped:
        said = str(stopped) or "stopped; what is complete is kept, and the same command goes on"
        typer.echo(said, err=True)
        # The exit code by which shells tell that a signal ended a process.
        raise typer.Exit(128 + ended_by[0]) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    typer.echo(f"Note: {message}", err=True)


def shows_progress(machine: bool) -> bool:
    """Return whether progress bars are drawn: in a terminal, for people."""
    return not machine and sys.stdout.isatty()


def typed() -> str:
    """Return the command as it was typed."""
    return shlex.join(["eande", *sys.argv[1:]])


def say(text: str, content: Mapping[str, Any], *, machine: bool) -> None:
    """Print a result: a text for people, a JSON document for machines.

    Args:
        text: for people.
        content: for machines.
        machine: whether one is reading.
    """
    typer.echo(json.dumps(content, default=str) if machine else text)


def settings_of(words: list[str] | None) -> dict[str, Any]:
    """Return settings given as ``key=value``; a value is read as JSON, else it is a text."""
    from eande.foundations.checks import InputError

    found: dict[str, Any] = {}
    for word in words or []:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise InputError(f"expected KEY=VALUE, such as max_steps=3000, got {word!r}")
        found[key] = _as_value(_WORDS.get(value, value))
    return found


def _as_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
