"""A group of commands that refuses what was typed as everything else does: in one line."""

import difflib
from collections.abc import Sequence
from functools import partial
from typing import Any

import typer
from typer.core import TyperGroup

# The base of what typer raises for what was typed: click's own, or typer's copy of it.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


class Commands(TyperGroup):
    """A group of commands; without a word behind it, it shows its help."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **more: Any,
    ) -> Any:
        """Run the command that was typed; a refusal is one line, and ends with exit code 2."""
        run = partial(
            super().main, args, prog_name, complete_var, False, windows_expand_args, **more
        )
        if not standalone_mode:
            return run()
        try:
            code = run()
        except typer.Abort:
            code = 1
        except _UsageError as refused:
            typer.echo(f"Error: {_in_one_line(refused)}", err=True)
            code = 2
        raise SystemExit(code)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Show the help where no command was named."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), color=ctx.color)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command of that name, or refuse it and say which it may have been."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            ctx.fail(f"No such command: {name}{_meant(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


def _meant(name: str, known: Sequence[str]) -> str:
    """Return what a name may have been meant for, in brackets; nothing where it is like none."""
    near = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _in_one_line(refused: Any) -> str:
    """Return what is wrong with what was typed, and where to look."""
    said = " ".join(refused.format_message().split()).rstrip(".")
    if refused.ctx is None:
        return said
    return f"{said}; '{refused.ctx.command_path} --help' shows what there is"
