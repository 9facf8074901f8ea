"""Figures as parts of a page: SVG without anything of its own that could meet another's.

Texts are drawn as paths: they look the same wherever the page is opened, and nothing has to be
fetched. Identifiers get a prefix of their figure, styles that would hold for the whole page and
comments are left out. The same figure gives the same text.
"""

import re
from io import StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eande.plots.style import Figure

_DPI = 110
_BODY = re.compile(r"<svg\b.*</svg>", re.DOTALL)
_LEFT_OUT = re.compile(r"<!--.*?-->|<metadata>.*?</metadata>|<style\b.*?</style>", re.DOTALL)
_SIZE = re.compile(r'(<svg\b[^>]*?)\s+width="[^"]*"', re.DOTALL)
_HEIGHT = re.compile(r'(<svg\b[^>]*?)\s+height="[^"]*"', re.DOTALL)
_IDENTIFIER = re.compile(r'(\bid="|url\(#|href="#)')
_DECIMALS = re.compile(r"(\d+\.\d{2})\d+")
_PATH = re.compile(r'(?<=\sd=")[^"]*')


def as_svg(figure: "Figure", prefix: str) -> tuple[str, int]:
    """Return a figure's markup and its width in pixels.

    Args:
        figure: of matplotlib.
        prefix: of all its identifiers: one of its own for each figure of a page.
    """
    from matplotlib import rc_context

    from eande.plots.style import unknown_letters_accepted

    drawn = StringIO()
    # Letters that the font has not are boxes here; the names themselves stand in tables.
    fixed = rc_context({"svg.fonttype": "path", "svg.hashsalt": "eande"})
    with fixed, unknown_letters_accepted():
        figure.savefig(drawn, format="svg", dpi=_DPI, metadata={"Date": None}, facecolor="none")
    found = _BODY.search(drawn.getvalue())
    assert found is not None, "matplotlib wrote no figure"
    svg = _LEFT_OUT.sub("", found[0])
    svg = _HEIGHT.sub(r"\1", _SIZE.sub(r"\1", svg, count=1), count=1)
    svg = _IDENTIFIER.sub(rf"\g<1>{prefix}-", svg)
    svg = _PATH.sub(lambda path: _DECIMALS.sub(r"\1", path[0]), svg)
    width = round(96 * figure.get_figwidth())
    return svg.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1), width
