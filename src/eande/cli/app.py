"""The command ``eande``. A new command is a file beside this one, and a line below."""

import typer

from eande.cli.reproduce_lorenz96 import lorenz96
from eande.cli.reproduce_sbibm import sbibm
from eande.cli.reproduce_synthetic import synthetic

app = typer.Typer(
    help="Embed & Emulate: posteriors from simulations.", no_args_is_help=True, add_completion=False
)
reproduce = typer.Typer(help="Reproduce a table or figure of the paper.", no_args_is_help=True)
reproduce.command()(synthetic)
reproduce.command()(sbibm)
reproduce.command()(lorenz96)
app.add_typer(reproduce, name="reproduce")


@app.callback()
def main() -> None:
    """Embed & Emulate: posteriors from simulations."""
