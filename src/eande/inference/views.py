r"""One observation in several views, such as all windows of a series, its evidence combined.

A model that was trained on windows tells the ratio of one window. Of an observation that has room
for K of them,

    log r̄(φ, y) = (1/K) Σ_k log r(φ, y_k) − log C(y):

the posteriors of all views are averaged in the log, and normalised anew. Every view counts alike,
and the result is about as sharp as that of one of them. Were they independent, their evidence would
add up, and the right posterior were p r̄^K; the windows of one series are not, nor are the copies
of one picture, turned and mirrored. What power is right, somewhere between 1 and K, is for
calibration to find, on held-out simulations as long as the observation (:func:`eande.calibrate`),
which looks for powers up to 32 and warns at that.

A mean of log ratios with a power is a composite likelihood whose magnitude is adjusted; the mean of
embeddings is the same, where the score is an inner product.

References:
    Varin, Reid and Firth, *An overview of composite likelihood methods*, 2011;
    Pauli, Racugno and Ventura, *Bayesian composite marginal likelihoods*, 2011 (the adjustment).
"""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from eande.foundations.checks import (
    InputError,
    calling,
    check_count,
    check_function,
    check_instance,
    check_plain,
    show_shape,
)
from eande.inference.guide import Guide
from eande.inference.model import EmbedAndEmulate
from eande.inference.saving import WindowsDocument
from eande.similarities.similarity import Similarity

# A batch of data (m, …) in several views (m, *y_shape), always the same ones.
Views: TypeAlias = Callable[[Tensor], Sequence[Tensor]]
# More views than this are a mistake: each costs a pass of the encoder and one of the scores.
_MOST_VIEWS = 4_096


class EvenWindows:
    """Windows of one length, evenly spread over an axis, the first and the last at its ends.

    Args:
        length: entries in a window.
        count: how many; None for as few as cover the data.
        axis: of a datum.

    Example:
        >>> first, last = EvenWindows(6)(torch.arange(10.0).expand(1, 10))
        >>> first, last
        (tensor([[0., 1., 2., 3., 4., 5.]]), tensor([[4., 5., 6., 7., 8., 9.]]))
    """

    def __init__(self, length: int, count: int | None = None, *, axis: int = 0) -> None:
        check_count("length", length, 1)
        if count is not None:
            check_count("count", count, 1, at_most=_MOST_VIEWS)
        check_count("axis", axis, 0)
        self.length = int(length)
        self.count = None if count is None else int(count)
        self.axis = int(axis)

    def __repr__(self) -> str:
        """Return how to make it."""
        more = "" if self.axis == 0 else f", axis={self.axis}"
        return f"EvenWindows({self.length}, {self.count}{more})"

    def starts(self, whole: int) -> list[int]:
        """Return where the windows of so many entries begin.

        Example:
            >>> EvenWindows(6, 3).starts(10)
            [0, 2, 4]
        """
        check_count("whole", whole, 1)
        room = whole - self.length
        if room < 0:
            raise InputError(
                f"EvenWindows: expected data of at least {self.length} entries along axis "
                f"{self.axis}, got {whole}"
            )
        count = self.count or math.ceil(whole / self.length)
        check_count("number of windows", count, 1, at_most=_MOST_VIEWS)
        if count == 1:
            # In the middle.
            return [room // 2]
        return [round(i * room / (count - 1)) for i in range(count)]

    def __call__(self, y: Tensor) -> list[Tensor]:
        """Return the windows of each of a batch of data (m, …)."""
        check_instance("y", y, Tensor, "a tensor of data")
        check_plain("y", y)
        if self.axis + 1 >= y.ndim:
            raise InputError(
                f"EvenWindows: expected data with an axis {self.axis}, got data of shape "
                f"{show_shape(y.shape[1:])}"
            )
        starts = self.starts(y.shape[self.axis + 1])
        return [y.narrow(self.axis + 1, start, self.length) for start in starts]


class MeanOfViews(Similarity):
    """The mean of a similarity's scores over the views of a datum.

    Args:
        inner: of a single view. It belongs to the encoder of all.
        count: how many views, whose points lie side by side.
    """

    name = "mean of views"
    trainable = False

    def __init__(self, inner: Similarity, count: int) -> None:
        super().__init__()
        self.settings = {"count": count}
        self._inner = (inner,)
        self.count = count

    @property
    def inner(self) -> Similarity:
        """That of a single view."""
        return self._inner[0]

    @property
    def scale(self) -> float:
        """That of a single view."""
        return self.inner.scale

    def place(self, raw: Tensor) -> Tensor:
        """Leave points where the model of a single view put them."""
        return raw

    def _mean(self, of_view: Callable[[Tensor], Tensor], f: Tensor) -> Tensor:
        """Return the mean over views of what is computed of their points (m, n)."""
        first, *others = f.chunk(self.count, dim=-1)
        total = of_view(first)
        # One after the other: together they would take as many times the memory.
        for point in others:
            total = total + of_view(point)
        return total / self.count

    def score(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the scores of all pairs, (m, K n) × (k, n) → (m, k)."""
        return self._mean(lambda point: self.inner.score(point, g), f)

    def paired_score(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the scores of matching rows, (m, K n) × (m, n) → (m,)."""
        return self._mean(lambda point: self.inner.paired_score(point, g), f)

    def grouped_score(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the scores of each datum with points of its own, (m, K n) × (m, k, n) → (m, k)."""
        return self._mean(lambda point: self.inner.grouped_score(point, g), f)

    def bound(self, f: Tensor) -> Tensor | None:
        """Return the mean of the views' bounds; None where there are none."""
        bounds = [self.inner.bound(point) for point in f.chunk(self.count, dim=-1)]
        known = [bound for bound in bounds if bound is not None]
        return torch.stack(known).mean(0) if len(known) == len(bounds) else None

    def features(self, f: Tensor) -> Tensor:
        """Return the mean of the views' features."""
        return self._mean(self.inner.features, f)


class EncoderOfViews(nn.Module):
    """The embeddings of all views of a datum, side by side.

    Args:
        model: of a single view.
        views: of a batch of data.
    """

    def __init__(self, model: EmbedAndEmulate, views: Views) -> None:
        super().__init__()
        self.model = model
        self.views = views
        self.gaps = model.takes_gaps

    def forward(self, y: Tensor) -> Tensor:
        """Map data (m, …) to (m, K n)."""
        return torch.cat([self.model.embed(view) for view in views_of(self.views, y)], dim=1)

    def describe(self, y_shape: Sequence[int], similarity: Similarity) -> WindowsDocument:
        """Return what a file says of the views of data of a shape, and of what scores them."""
        views = self.views
        if not isinstance(views, EvenWindows):
            raise InputError(
                "save: expected a model whose views a file can hold, eande.EvenWindows, got a "
                "function of your own"
            )
        return WindowsDocument(
            list(y_shape), views.length, views.count, views.axis, similarity.describe()
        )

    def reach(self, y: Tensor) -> Tensor:
        """Return how many times farther out than all simulations the farthest view lies, (m,)."""
        return torch.stack([self.model.reach(view) for view in views_of(self.views, y)]).amax(0)

    def near(self, y: Tensor) -> tuple[Tensor, list[Guide | None]]:
        """Return the same; proposals for a single view are none for all of them."""
        return self(y), [None] * len(y)

    def by_draws(self, y: Tensor) -> Tensor:
        """Map data to the same, with NaN where an ensemble knows more than it can say here."""
        if not self.model.members:
            return self(y)
        encoder: Any = self.model.encoder
        parts = [
            encoder.by_draws(self.model.y_standardizer(view)) for view in views_of(self.views, y)
        ]
        return torch.cat(parts, dim=1)


class EmulatorOfViews(nn.Module):
    """That of the model of a single view, which belongs to the encoder."""

    def __init__(self, model: EmbedAndEmulate) -> None:
        super().__init__()
        self._model = (model,)

    def forward(self, phi: Tensor) -> Tensor:
        """Map parameters (m, D) to (m, n)."""
        return self._model[0].emulate(phi)


def views_of(views: Views, y: Tensor) -> list[Tensor]:
    """Return the views of a batch of data; where that fails, an error says in what call."""
    if isinstance(views, EvenWindows):
        return views(y)

    def call() -> Sequence[Tensor]:
        return views(y)

    with calling("views", call, shape=show_shape(y.shape)):
        found = call()
    if not isinstance(found, list | tuple) or not found:
        raise InputError(
            f"views: expected a list of tensors, one for each view, got {type(found).__name__}"
        )
    return list(found)


def combine_views(
    model: EmbedAndEmulate, y_shape: Sequence[int], views: Views | None = None
) -> EmbedAndEmulate:
    """Return a model of observations that hold several views, made of a model of one view.

    Its posteriors are about as sharp as those of one view, whatever all of them know together. Give
    it to :func:`eande.calibrate` with held-out simulations of the same shape: these tell how much
    the views add to each other. Then it is a model like any other, to diagnose, save and load.

    Args:
        model: fitted to single views, by ``views=eande.RandomWindow(40)``, say; it is copied.
        y_shape: shape of an observation.
        views: what of it the model sees: :class:`EvenWindows`, or a function of a batch of data
            (m, …) that returns a list of as many batches of the model's shape, always the same
            ones. By default as few windows of the first axis as cover it.

    Example:
        >>> def halves(y):
        ...     return [y[:, :10], y[:, 10:]]
        >>> both = combine_views(model, (20,), halves)
        >>> both.posterior(np.concatenate([y_observed, y_observed])).sample(100)[0].shape
        torch.Size([100, 2])
    """
    check_instance(
        "model", model, EmbedAndEmulate, "a fitted model (from a file: eande.load(path))"
    )
    check_instance("y_shape", y_shape, (list, tuple), "the shape of one observation")
    if model.combined_views is not None:
        raise InputError("model: expected one of a single view, got one of several")
    if views is None:
        views = EvenWindows(model.y_shape[0])
    check_function("views", views, "a batch of data")
    copied = copy.deepcopy(model)
    count = _count(copied, tuple(y_shape), views)
    joint = EmbedAndEmulate(
        EncoderOfViews(copied, views),
        EmulatorOfViews(copied),
        MeanOfViews(copied.similarity, count),
        copied.prior,
        y_shape=tuple(y_shape),
        embedding_dimension=count * copied.embedding_dimension,
        # That of a single view was.
        run_once=False,
    ).to(copied.device)
    joint.combined_views = views
    joint.encoder_rows = max(1, min(joint.encoder_rows, copied.encoder_rows))
    joint.emulator_rows = copied.emulator_rows
    joint.members = copied.members or (copied,)
    joint.history = copied.history
    joint.tried = copied.tried
    joint.frozen = copied.frozen
    joint.trained_on = copied.trained_on
    return joint.requires_grad_(False).eval()


def _count(model: EmbedAndEmulate, y_shape: tuple[int, ...], views: Views) -> int:
    """Return the number of views, all of which must be data of the model's shape."""
    check_count("number of axes of y_shape", len(y_shape), 1)
    for size in y_shape:
        check_count("y_shape", size, 1)
    # One number in all places: windows of it take no memory, however large a file says it is.
    try:
        found = views_of(views, torch.zeros((), device=model.device).expand(2, *y_shape))
    except InputError as error:
        if not isinstance(views, EvenWindows):
            raise
        raise InputError(f"y_shape: {error}") from None
    check_count("number of views", len(found), 1, at_most=_MOST_VIEWS)
    expected = (2, *model.y_shape)
    for view in found:
        if not isinstance(view, Tensor) or tuple(view.shape) != expected:
            got = show_shape(view.shape) if isinstance(view, Tensor) else type(view).__name__
            raise InputError(
                f"views: expected data of the model's shape, {show_shape(expected)} of two, got "
                f"{got}"
            )
    return len(found)
