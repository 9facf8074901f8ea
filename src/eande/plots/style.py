"""Colours that colour-blind readers can tell apart, and matplotlib itself.

Reference:
    Okabe and Ito, *Color universal design*, 2008 (the colours).
"""

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError:
    raise ImportError("figures need matplotlib: pip install 'embed-and-emulate[plots]'") from None

OURS = "#0072B2"
REFERENCE = "#E69F00"
ACCENT = "#D55E00"
COLORS = (OURS, ACCENT, "#009E73", "#CC79A7", REFERENCE, "#56B4E9", "#000000")

__all__ = ["ACCENT", "COLORS", "OURS", "REFERENCE", "Axes", "Figure"]
