"""Colours that colour-blind readers can tell apart, and matplotlib itself.

Reference:
    Okabe and Ito, *Color universal design*, 2008 (the colours).
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.text import Text
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter
except ImportError:
    raise ImportError("figures need matplotlib: pip install matplotlib") from None

OURS = "#0072B2"
REFERENCE = "#E69F00"
ACCENT = "#D55E00"
COLORS = (OURS, ACCENT, "#009E73", "#CC79A7", REFERENCE, "#56B4E9", "#000000")

# Lines are told apart without colours, too.
LINE_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 2)))


def plain(text: Text) -> Text:
    """Make matplotlib write a text of the user's as it is: dollars are no formula."""
    text.set_parse_math(False)
    text.set_usetex(False)
    # Half a letter, as damaged files have them, is none that could be drawn.
    text.set_text(text.get_text().encode(errors="replace").decode())
    return text


@contextmanager
def unknown_letters_accepted() -> Iterator[None]:
    """Draw names in scripts that the font has not, as boxes, without a warning for each letter."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s)Glyph .* missing from font")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        yield


__all__ = [
    "ACCENT",
    "COLORS",
    "LINE_STYLES",
    "OURS",
    "REFERENCE",
    "Axes",
    "Figure",
    "Line2D",
    "MaxNLocator",
    "Patch",
    "StrMethodFormatter",
    "Text",
    "plain",
    "unknown_letters_accepted",
]
