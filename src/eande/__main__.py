"""``python -m eande``: the command ``eande``, where it is not on the path."""

from eande.cli.app import app

if __name__ == "__main__":
    app()
