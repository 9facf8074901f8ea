"""Pages and figures of studies: written in one step, as result files are."""

from io import BytesIO
from pathlib import Path
from typing import Any

from eande.foundations.files import clear_strays, replacing, storing


def write_text(path: Path, text: str) -> None:
    """Write a text."""
    _write(path, text.encode())


def write_figure(path: Path, figure: Any, *, dpi: int) -> None:
    """Write a figure of matplotlib.

    Args:
        path: where; its ending says in what format.
        figure: what.
        dpi: pixels per inch.
    """
    drawn = BytesIO()
    figure.savefig(drawn, dpi=dpi, format=path.suffix.removeprefix("."))
    _write(path, drawn.getvalue())


def _write(path: Path, content: bytes) -> None:
    clear_strays(path)
    with replacing(path) as file, storing(path):
        file.write(content)
