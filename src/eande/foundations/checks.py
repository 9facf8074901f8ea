"""Checks of what a user can get wrong: each refusal is a line, "name: expected …, got …".

torch is loaded by the checks that need it: processes that only simulate start in a fraction of the
time without it.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Longer values are cut in a message.
_LONGEST_SHOWN = 80
# Stands for a key that is not there, in :func:`check_same`.
_MISSING = object()


class InputError(ValueError):
    """What the user gave cannot be used; the message says what was expected and what was given."""


class UserCodeError(RuntimeError):
    """A function or network of the user's raised an exception, which is the cause of this one.

    Args:
        message: what was called, with what, and how it ended.
        again: repeats that very call.
    """

    def __init__(self, message: str, again: Callable[[], object] | None = None) -> None:
        super().__init__(message)
        self.again = again

    def __reduce__(self) -> tuple[type[UserCodeError], tuple[str]]:
        """Go to another process without what repeats the call, which may not be able to."""
        return UserCodeError, (str(self),)


@contextmanager
def calling(what: str, again: Callable[[], object], **given: object) -> Iterator[None]:
    """Say in one line which code of the user's failed, and in what call.

    What eande itself raises stays as it is.

    Args:
        what: was called: the name of the argument it came by.
        again: repeats the call.
        given: what it was called with, by name.

    Example:
        >>> with calling("views", lambda: 1 / 0, step=3):
        ...     1 / 0
        Traceback (most recent call last):
        eande.foundations.checks.UserCodeError: views: raised ZeroDivisionError (division by zero)
            when called with step 3; this error's again() repeats that call
    """
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] == "eande":
            raise
        reason = (str(error).splitlines() or ["without a message"])[0]
        called = ", ".join(f"{name} {value}" for name, value in given.items())
        raise UserCodeError(
            f"{what}: raised {type(error).__name__} ({reason}) when called with {called}; this "
            "error's again() repeats that call",
            again,
        ) from error


class EandeWarning(UserWarning):
    """Something works, but the user should know about it."""


def as_float_tensor(name: str, value: Any, *, device: torch.device | str | None = None) -> Tensor:
    """Turn an array, tensor, number or nested list into a float32 tensor."""
    import torch

    try:
        # A tensor is one already, and catching warnings takes longer than all else here.
        tensor = value if isinstance(value, torch.Tensor) else _as_tensor(name, value)
    except InputError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{name}: expected numbers in an array or tensor, got {type(value).__name__} ({error})"
        ) from None
    if tensor.is_complex():
        raise InputError(f"{name}: expected real numbers, got {tensor.dtype}")
    return tensor.to(device=device, dtype=torch.float32)


def _as_tensor(name: str, value: Any) -> Tensor:
    import torch

    masked = getattr(value, "mask", None)
    if hasattr(value, "__array__"):
        value = value.__array__()
        if masked is not None and hasattr(masked, "any") and masked.any():
            raise InputError(f"{name}: expected numbers, got {int(masked.sum())} masked entries")
        if not value.dtype.isnative or any(stride < 0 for stride in value.strides):
            # torch takes neither.
            value = value.astype(value.dtype.newbyteorder("="), order="C")
    with warnings.catch_warnings():
        # That a read-only array must not be written to, which we do not do.
        warnings.filterwarnings("ignore", message=".*not writable")
        return torch.as_tensor(value)


def check_finite(name: str, values: Tensor) -> None:
    """Refuse NaN and infinity; count them and point at the first."""
    import torch

    # One reduction settles the usual case without a mask the size of the data.
    if torch.isfinite(values.sum(dtype=torch.float64)):
        return
    bad = ~torch.isfinite(values)
    if bad.any():
        first = tuple(int(i) for i in bad.nonzero()[0])
        where = first[0] if len(first) == 1 else first
        raise InputError(
            f"{name}: expected finite float32 numbers, "
            f"got {int(bad.sum())} NaN or inf, the first at index {where}"
        )


def check_shape(name: str, values: Tensor, expected: Sequence[int | str]) -> None:
    """Refuse another shape than the expected one, in which a string stands for any size."""
    fits = len(expected) == values.ndim and all(
        isinstance(want, str) or want == got
        for want, got in zip(expected, values.shape, strict=True)
    )
    if not fits:
        raise InputError(
            f"{name}: expected shape {show_shape(expected)}, got {show_shape(values.shape)}"
        )


def shown(value: object) -> str:
    """Return a value as a message has it: in one line, cut where it is long.

    Example:
        >>> shown([1, "a"])
        "[1, 'a']"
    """
    try:
        text = repr(value)
    except RecursionError:
        return f"a {type(value).__name__} of many levels"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def show_shape(shape: Sequence[int | str]) -> str:
    """Write a shape as people do, ``(n, 2)`` or ``(n,)``."""
    inside = ", ".join(str(size) for size in shape)
    return f"({inside},)" if len(shape) == 1 else f"({inside})"


def check_at_least(name: str, value: object, minimum: float) -> None:
    """Refuse a number under the minimum (NaN included)."""
    if not isinstance(value, Real) or not float(value) >= minimum:
        raise InputError(f"{name}: expected a number of at least {minimum}, got {value!r}")


def check_count(name: str, value: object, minimum: int, *, at_most: float = math.inf) -> None:
    """Refuse what is no whole number from the minimum to the maximum."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < minimum:
        raise InputError(f"{name}: expected a whole number of at least {minimum}, got {value!r}")
    if int(value) > at_most:
        raise InputError(f"{name}: expected a whole number of at most {at_most}, got {value!r}")


def check_positive(name: str, value: object) -> None:
    """Refuse a number that is not above zero and finite."""
    if not isinstance(value, Real) or not 0 < float(value) < math.inf:
        raise InputError(f"{name}: expected a finite number above 0, got {value!r}")


def check_share(name: str, value: object) -> None:
    """Refuse a number that is not between 0 and 1."""
    if not isinstance(value, Real) or not 0 < float(value) < 1:
        raise InputError(f"{name}: expected a number between 0 and 1, got {value!r}")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse a word that is not one of the choices."""
    if value not in choices:
        known = ", ".join(map(repr, choices))
        raise InputError(f"{name}: expected one of {known}, got {shown(value)}")


def check_same(
    where: object,
    expected: Mapping[str, Any],
    found: Mapping[str, Any],
    *,
    what: str,
    remedy: str,
) -> None:
    """Refuse what was made by another call, and name the first difference.

    Both are compared as JSON: a list equals a tuple, and NaN equals NaN. Dictionaries inside are
    compared key by key, so that only what differs is printed.

    Args:
        where: the file or folder.
        expected: what describes this call.
        found: what describes the call that made it.
        what: it is, with its article: ``"a store"``.
        remedy: what the user can do.

    Example:
        >>> about = {"seed": 0, "prior": {"kind": "box", "low": [0.0]}}
        >>> check_same("here", about, about, what="a store", remedy="use another folder")
        >>> other = {"seed": 0, "prior": {"kind": "box", "low": [1.0]}}
        >>> check_same("here", about, other, what="a store", remedy="use another folder")
        Traceback (most recent call last):
        eande.foundations.checks.InputError: here: expected a store with prior.low [0.0], got one
            with [1.0]; use another folder
    """
    try:
        difference = _first_difference(_as_json(expected), _as_json(found))
    except RecursionError:
        raise InputError(f"{where}: expected {what}, got lists within lists; {remedy}") from None
    if difference is not None:
        key, wanted, got = difference
        key = key[:_LONGEST_SHOWN]
        wanted_text = f"without {key}" if wanted is _MISSING else f"with {key} {shown(wanted)}"
        got_text = "without" if got is _MISSING else f"with {shown(got)}"
        raise InputError(f"{where}: expected {what} {wanted_text}, got one {got_text}; {remedy}")


def _as_json(document: Mapping[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(json.dumps(document, default=str))
    return content


def _first_difference(
    expected: Mapping[str, Any], found: Mapping[str, Any], prefix: str = ""
) -> tuple[str, Any, Any] | None:
    """Return key, expected and found value of the first difference; None if there is none."""
    for key in [*expected, *(key for key in found if key not in expected)]:
        wanted = expected.get(key, _MISSING)
        got = found.get(key, _MISSING)
        if isinstance(wanted, dict) and isinstance(got, dict):
            difference = _first_difference(wanted, got, f"{prefix}{key}.")
            if difference is not None:
                return difference
        elif wanted is _MISSING or got is _MISSING or not _equal(wanted, got):
            return f"{prefix}{key}", wanted, got
    return None


def _equal(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal; as texts, for a NaN is not equal to itself."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
