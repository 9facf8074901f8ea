"""What the commands that take a step have in common: how they begin, and what they say."""

import shlex
from pathlib import Path
from typing import Any

import typer

from eande.cli.terminal import say, shows_progress, typed


def begin(study: Path, run: Path | None, *, machine: bool) -> Any:
    """Read the study and return the context of its steps."""
    from eande.workflow.folder import run_folder
    from eande.workflow.steps import Context
    from eande.workflow.study import read_study

    known = read_study(study)
    folder = run_folder(known, run)
    return Context(known, folder, command=typed(), progress=shows_progress(machine))


def tell(taken: Any, then: str | None, study: Path, run: Path | None, *, machine: bool) -> None:
    """Print what a step found, where it is, and what to type next."""
    paths = [str(path) for path in taken.paths]
    content = {"step": taken.step, "paths": paths, "there": taken.again, **taken.content}
    word = "in" if not taken.again else "there already, in"
    where = f"\n{word} {', '.join(shown(path) for path in taken.paths)}" if paths else ""
    say(f"{taken.text}{where}", content, machine=machine)
    if then is not None and not machine:
        words = ["eande", then, str(study), *(["--run", str(run)] if run is not None else [])]
        typer.echo(f"next: {shlex.join(words)}")


def shown(path: Path) -> str:
    """Return a path as one would type it here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
