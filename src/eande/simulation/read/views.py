"""Views: what the encoder sees of a simulation in one step (a window, a shift, a noisy copy).

A view is any callable ``view(y, generator) -> y``: ``y`` a batch of stored data (m, …),
``generator`` a torch generator to draw from, the result a batch (m, …) whose rows still have the
same parameters. Training draws a new view of each datum in every step; validation uses one fixed
view per datum.

A view with ``reads_rows = True`` gets the batch unread
(:class:`~eande.simulation.read.sources.Rows`) and reads what it needs.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from eande.foundations.checks import (
    InputError,
    calling,
    check_count,
    check_function,
    check_instance,
    check_plain,
    show,
    show_shape,
)
from eande.foundations.seeds import generator
from eande.simulation.read.sources import Rows, Source

View = Callable[..., Tensor]

# Fixed views are drawn for at most this many numbers (16 MB) and this many rows at a time.
_NUMBERS_TOGETHER = 4_000_000
_ROWS_TOGETHER = 4_096


class RandomWindow:
    """A window of fixed length at a random place along the first axis of each datum.

    Of data in a store or in files nothing else is read.

    Args:
        length: entries in the window.

    Example:
        >>> y = torch.arange(10.0).expand(3, 10)
        >>> RandomWindow(4)(y, generator(0)).shape
        torch.Size([3, 4])
    """

    reads_rows = True

    def __init__(self, length: int) -> None:
        check_count("length", length, 1)
        self.length = int(length)

    def __call__(self, y: Tensor | Rows, generator: torch.Generator) -> Tensor:
        """Draw a start for each row, every possible one equally likely, and read the windows."""
        _check_batch(y, generator)
        rows = y if isinstance(y, Rows) else Rows(y, torch.arange(len(y)))
        room = rows.shape[1] - self.length
        if room < 0:
            raise InputError(
                f"RandomWindow: expected a length of at most {rows.shape[1]}, "
                f"the data's first axis, got {self.length}"
            )
        starts = torch.randint(room + 1, (len(rows),), generator=generator)
        return rows.windows(starts, self.length)


class Roll:
    """A random shift along a periodic axis, another one for each datum.

    Args:
        axis: of one datum; −1 is its last.
        sections: sizes of rings that lie one after the other along the axis and are shifted
            together, each by the same share of its size; None for one ring. For Lorenz 96,
            (36, 360): a shift by one slow variable is one by ten fast ones.

    Example:
        >>> Roll(sections=(2, 4))(torch.arange(6.0).expand(1, 6), generator(0))
        tensor([[1., 0., 4., 5., 2., 3.]])
    """

    reads_rows = False

    def __init__(self, axis: int = -1, sections: Sequence[int] | None = None) -> None:
        check_count("axis", axis, -(2**31), 2**31)
        if not (sections is None or isinstance(sections, list | tuple)):
            raise InputError(f"sections: expected a list of sizes, got {show(sections)}")
        self.axis = int(axis)
        self.sections = None if sections is None else tuple(sections)
        if self.sections is not None:
            check_count("number of sections", len(self.sections), 1)
        for size in self.sections or ():
            check_count("sections", size, 1)

    def __call__(self, y: Tensor, generator: torch.Generator) -> Tensor:
        """Shift each row by a whole number of steps, every one equally likely."""
        _check_batch(y, generator)
        axis = self.axis + 1 if self.axis >= 0 else self.axis
        if not -y.ndim < axis < y.ndim or axis == 0:
            raise InputError(
                f"Roll: expected an axis of data of shape {tuple(y.shape[1:])}, got {self.axis}"
            )
        sections = self.sections or (y.shape[axis],)
        if sum(sections) != y.shape[axis]:
            raise InputError(
                f"Roll: expected sections that add up to {y.shape[axis]}, the size of the axis, "
                f"got {sections}"
            )
        steps = math.gcd(*sections)
        shift = torch.randint(steps, (len(y), 1), generator=generator)
        shift = shift.to(y.device, non_blocking=True)
        places = []
        begin = 0
        for size in sections:
            ring = torch.arange(size, device=y.device)
            places.append(begin + (ring - shift * (size // steps)) % size)
            begin += size
        shape = [1] * y.ndim
        shape[0] = len(y)
        shape[axis] = y.shape[axis]
        return y.gather(axis, torch.cat(places, dim=1).view(shape).expand(y.shape))


class Compose:
    """Several views, one after the other; the first may read rows.

    Args:
        views: in the order in which they are applied.

    Example:
        >>> Compose(RandomWindow(4), Roll())(torch.zeros(3, 10, 5), generator(0)).shape
        torch.Size([3, 4, 5])
    """

    def __init__(self, *views: View) -> None:
        check_count("number of views", len(views), 1)
        for view in views:
            check_function("views", view, "(y, generator)")
        self.views = views
        self.reads_rows = bool(getattr(views[0], "reads_rows", False))

    def __call__(self, y: Tensor | Rows, generator: torch.Generator) -> Tensor:
        """Apply one view after the other."""
        _check_batch(y, generator)
        seen = self.views[0](y, generator)
        for view in self.views[1:]:
            seen = view(seen, generator)
        return seen


def _check_batch(y: Any, generator: Any) -> None:
    """Refuse what is no batch of data, and what no random number can be drawn from."""
    check_instance("y", y, (Tensor, Rows), "a tensor of data")
    check_instance("generator", generator, torch.Generator, "a torch.Generator")
    if isinstance(y, Tensor):
        check_plain("y", y)
    if len(y.shape) < 2:
        raise InputError(f"y: expected a batch of data (m, …), got {show(y)}")


def draw_view(views: View | None, rows: Rows, seed: int, *path: int | str) -> Tensor:
    """Return a view of each row, drawn with this seed and path; without views, the rows."""
    if views is None:
        return rows.tensor()
    given = rows if getattr(views, "reads_rows", False) else rows.tensor()

    def call() -> Tensor:
        return views(given, generator(seed, "view", *path))

    # Training's path is the step and which of two views.
    drawn = "/".join(map(str, path))
    with calling("views", call, shape=show_shape(rows.shape), seed=seed, step=drawn):
        seen = call()
    if not isinstance(seen, Tensor) or seen.ndim < 2 or len(seen) != len(rows):
        got = tuple(seen.shape) if isinstance(seen, Tensor) else type(seen).__name__
        raise InputError(
            f"views: expected a tensor with first axis {len(rows)} "
            f"and at least one axis per datum, got {got}"
        )
    return seen.float()


def fixed_views(views: View | None, y: Tensor | Source) -> Iterator[Tensor]:
    """Yield, some data at a time, the one view of each datum that validation uses.

    It is the same in every epoch of every fit.
    """
    together = max(1, min(_NUMBERS_TOGETHER // math.prod(y.shape[1:]), _ROWS_TOGETHER))
    for part, index in enumerate(torch.arange(len(y)).split(together)):
        yield draw_view(views, Rows(y, index), 0, "fixed", part)
