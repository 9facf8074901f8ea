"""Commands run in this process."""

from typer.testing import CliRunner

from eande.cli.app import app


def refused(*arguments):
    """Run a command that must be refused, and return what it said in one line."""
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 2, done.output
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr.strip()
