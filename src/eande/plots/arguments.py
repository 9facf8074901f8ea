"""Arguments of figures: arrays, and arrays by name."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from eande.foundations.checks import (
    InputError,
    as_float_tensor,
    check_count,
    check_finite,
    check_shape,
    check_text,
    show,
)


def as_array(name: str, value: Any, shape: Sequence[int | str]) -> np.ndarray:
    """Return finite numbers of that shape, in which a text stands for any size, as an array."""
    numbers = as_float_tensor(name, value).detach().cpu()
    check_shape(name, numbers, shape)
    check_count(f"size of {name}", numbers.numel(), 1)
    check_finite(name, numbers)
    return numbers.numpy()


def by_name(name: str, value: Any) -> dict[str, Any]:
    """Return a dictionary of texts and what belongs to each, of one entry at least."""
    if not isinstance(value, Mapping) or not value:
        raise InputError(f"{name}: expected a dictionary by name, got {show(value)}")
    for key in value:
        check_text(f"names in {name}", key)
    return dict(value)
