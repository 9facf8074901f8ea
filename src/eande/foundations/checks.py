"""Checks of what a user can get wrong: each refusal is a line, "name: expected …, got …".

torch is loaded by the checks that need it: processes that only simulate start in a fraction of the
time without it.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Stands for a key that is not there, in :func:`check_same`.
_MISSING = object()
# Of a value in a message: a line can be read.
_LONGEST_SHOWN = 100
# What torch and numpy count with.
_LARGEST_COUNT = 2**63 - 1


class InputError(ValueError):
    """What the user gave cannot be used; the message says what was expected and what was given.

    Example:
        >>> eande.BoxPrior([0, 0], [1, -1])
        Traceback (most recent call last):
        eande.foundations.checks.InputError: high: expected every entry above low (in float32), ...
    """


class UserCodeError(RuntimeError):
    """A function or network of the user's raised an exception, which is the cause of this one.

    Args:
        message: what was called, with what, and how it ended.
        again: repeats that very call.

    Example:
        >>> def prior_draws(n, seed):
        ...     return 1 / 0
        >>> eande.SamplerPrior(prior_draws)
        Traceback (most recent call last):
        eande.foundations.checks.UserCodeError: prior sampler: raised ZeroDivisionError (division by
            zero) when called with n 2, seed 0; this error's again() repeats that call
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
    """Something works, but the user should know about it.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     posterior = model.posterior(held_out.y[:2], pooled=True)
        >>> caught[0].category.__name__, str(caught[0].message)[:22]
        ('EandeWarning', 'pooling 2 observations')
    """


def show(value: object) -> str:
    """Write a value for a message: on one line, and not too long.

    Example:
        >>> show({"a": 1}), show([0] * 100)[-7:]
        ("{'a': 1}", '0, 0, …')
    """
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and hasattr(value, "dtype") and len(shape) > 0:
        return f"{type(value).__name__} of shape {show_shape(shape)}"
    try:
        text = " ".join(repr(value).split())
    except Exception:
        # Numbers of thousands of digits have no text, and objects of others may have none.
        return f"a {type(value).__name__} too large to print"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def as_float_tensor(name: str, value: Any, *, device: torch.device | str | None = None) -> Tensor:
    """Turn an array, tensor, number or nested list into a float32 tensor."""
    import torch

    try:
        # A tensor is one already, and catching warnings takes longer than all else here.
        tensor = value if isinstance(value, torch.Tensor) else _as_tensor(name, value)
    except InputError:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(
            f"{name}: expected numbers in an array or tensor, "
            f"got {type(value).__name__} ({' '.join(str(error).split())[:_LONGEST_SHOWN]})"
        ) from None
    check_plain(name, tensor)
    if tensor.is_complex():
        raise InputError(f"{name}: expected real numbers, got {tensor.dtype}")
    return tensor.to(device=device, dtype=torch.float32)


def check_plain(name: str, tensor: Tensor) -> None:
    """Refuse tensors whose numbers do not lie in memory one beside the other."""
    import torch

    if tensor.is_nested:
        got = "a nested one"
    elif tensor.layout != torch.strided:
        got = f"one of layout {str(tensor.layout).removeprefix('torch.')}"
    elif tensor.is_meta:
        got = "one on the device 'meta', which holds no numbers"
    elif tensor.is_quantized:
        got = "a quantised one"
    else:
        return
    raise InputError(f"{name}: expected a dense tensor, got {got}")


def _as_tensor(name: str, value: Any) -> Tensor:
    import torch

    if isinstance(value, bytes | bytearray | memoryview):
        # torch would take their bytes for numbers.
        raise TypeError("bytes are no numbers")
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


def check_no_infinity(name: str, values: Tensor) -> None:
    """Refuse infinity only: NaN stands for what is missing."""
    check_finite(name, values.nan_to_num(0.0, math.inf, -math.inf))


def check_shape(name: str, values: Tensor, expected: Sequence[int | str]) -> None:
    """Refuse another shape than the expected one.

    In that a text stands for any size, and twice the same text for twice the same size.
    """
    sizes: dict[str, int] = {}
    fits = len(expected) == values.ndim and all(
        got == (sizes.setdefault(want, got) if isinstance(want, str) else want)
        for want, got in zip(expected, values.shape, strict=True)
    )
    if not fits:
        raise InputError(
            f"{name}: expected shape {show_shape(expected)}, got {show_shape(values.shape)}"
        )


def show_shape(shape: Sequence[int | str]) -> str:
    """Write a shape as people do, ``(n, 2)`` or ``(n,)``."""
    inside = ", ".join(str(size) for size in shape)
    return f"({inside},)" if len(shape) == 1 else f"({inside})"


def _is_number(value: object) -> bool:
    """Return whether a value is a real number that a float can hold, and no truth value."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def check_at_least(name: str, value: Any, minimum: float) -> None:
    """Refuse a number under the minimum (NaN included)."""
    if not _is_number(value) or not float(value) >= minimum:
        raise InputError(f"{name}: expected a number of at least {minimum}, got {show(value)}")


def check_count(name: str, value: Any, minimum: int, at_most: int = _LARGEST_COUNT) -> None:
    """Refuse what is no whole number from the minimum to the maximum."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < minimum:
        raise InputError(
            f"{name}: expected a whole number of at least {minimum}, got {show(value)}"
        )
    if int(value) > at_most:
        raise InputError(f"{name}: expected a whole number of at most {at_most}, got {show(value)}")


def check_seed(name: str, value: Any) -> None:
    """Refuse what is no whole number from 0 to 2⁶³ − 1."""
    check_count(name, value, 0)


def check_fits(name: str, count: int, size: int) -> None:
    """Refuse a count of things of so many bytes each that this machine's memory cannot hold."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if count * size > memory:
        raise InputError(
            f"{name}: expected what fits into {_gigabytes(memory)} of memory, "
            f"got {show(count)}, which take {_gigabytes(count * size)}"
        )


def _gigabytes(size: int) -> str:
    return f"{size // 10**9:,} GB"


def check_positive(name: str, value: Any) -> None:
    """Refuse a number that is not above zero and finite."""
    if not _is_number(value) or not 0 < float(value) < math.inf:
        raise InputError(f"{name}: expected a finite number above 0, got {show(value)}")


def check_share(name: str, value: Any) -> None:
    """Refuse a number that is not between 0 and 1."""
    if not _is_number(value) or not 0 < float(value) < 1:
        raise InputError(f"{name}: expected a number between 0 and 1, got {show(value)}")


def check_flag(name: str, value: object) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool) and type(value).__name__ != "bool":
        raise InputError(f"{name}: expected True or False, got {show(value)}")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse a word that is not one of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(
            f"{name}: expected one of {', '.join(map(repr, choices))}, got {show(value)}"
        )


def check_number(name: str, value: Any) -> None:
    """Refuse what is no finite number."""
    if not _is_number(value) or not math.isfinite(value):
        raise InputError(f"{name}: expected a finite number, got {show(value)}")


def check_instance(
    name: str, value: object, kind: type | tuple[type, ...], what: str, *, optional: bool = False
) -> None:
    """Refuse what is not of a class, nor None where that is allowed.

    Args:
        name: of the argument.
        value: given.
        kind: the class, or several.
        what: it should be, in words and with its article.
        optional: whether None is allowed.
    """
    if not isinstance(value, kind) and not (optional and value is None):
        got = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise InputError(f"{name}: expected {what}, got {got}")


def check_function(name: str, value: object, what: str) -> None:
    """Refuse what cannot be called; ``what`` says of which arguments: ``"(phi, rng)"``."""
    if not callable(value):
        raise InputError(f"{name}: expected a function of {what}, got {show(value)}")


def check_text(name: str, value: object) -> None:
    """Refuse what is no text, or one that cannot be printed."""
    if not isinstance(value, str) or "\0" in value:
        raise InputError(f"{name}: expected a text, got {show(value)}")


def as_names(name: str, value: Any, count: int) -> tuple[str, ...]:
    """Return so many different names; each is a text of one line that can be printed."""
    if not isinstance(value, list | tuple):
        raise InputError(f"{name}: expected a list of {count} names, got {show(value)}")
    for one in value:
        if not isinstance(one, str) or not one.isprintable() or not one.strip():
            raise InputError(
                f"{name}: expected texts of one line that can be printed, got {show(one)}"
            )
    if len(value) != count or len(set(value)) != count:
        raise InputError(f"{name}: expected {count} different names, got {show(value)}")
    return tuple(value)


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
        wanted_text = f"without {key}" if wanted is _MISSING else f"with {key} {show(wanted)}"
        got_text = "without" if got is _MISSING else f"with {show(got)}"
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
