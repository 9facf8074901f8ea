"""The command ``eande``. A new command is a file beside this one, and a line below."""

from typing import Annotated

import typer

from eande.cli.calibrate import calibrate
from eande.cli.diagnose import diagnose
from eande.cli.doctor import doctor
from eande.cli.fit import fit
from eande.cli.groups import Commands
from eande.cli.info import info
from eande.cli.new import new
from eande.cli.report import report
from eande.cli.reproduce_lorenz96 import lorenz96
from eande.cli.reproduce_sbibm import sbibm
from eande.cli.reproduce_synthetic import synthetic
from eande.cli.rounds import rounds
from eande.cli.run import run
from eande.cli.sample import sample
from eande.cli.simulate import simulate

app = typer.Typer(
    cls=Commands,
    help="Embed & Emulate: posteriors from simulations. Begin with: eande new study.py",
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (new, run, simulate, fit, sample, diagnose, report, calibrate, rounds, info, doctor):
    app.command()(command)
reproduce = typer.Typer(cls=Commands, help="Reproduce a table or figure of the paper.")
reproduce.command()(synthetic)
reproduce.command()(sbibm)
reproduce.command()(lorenz96)
app.add_typer(reproduce, name="reproduce")


def _version(asked: bool) -> None:
    if asked:
        from eande import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Embed & Emulate: posteriors from simulations. Begin with: eande new study.py."""
