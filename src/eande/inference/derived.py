"""Derived quantities: functions of the parameters, shown beside them.

    ψ = h(φ),      φ ~ q(φ | y)

Samples of the parameters, each with its h(φ), are samples of both together: nothing is trained for
a quantity that follows from the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from eande.foundations.checks import (
    InputError,
    as_float_tensor,
    as_names,
    calling,
    check_finite,
    check_function,
    check_shape,
    show,
)

# By name, functions of the parameters, each a tensor (n,) by its name.
Derived: TypeAlias = Mapping[str, Callable[[Mapping[str, Tensor]], Tensor]]


def check_derived(names: Sequence[str], derived: Derived | None) -> None:
    """Refuse what are no functions by name, and names that the parameters have."""
    if derived is None:
        return
    if not isinstance(derived, Mapping):
        raise InputError(f"derived: expected functions by name, got {show(derived)}")
    for name, function in derived.items():
        if name in names:
            raise InputError(
                f"derived: expected names that no parameter has, got {show(name)} twice"
            )
        check_function(f"derived[{show(name)}]", function, "the parameters by name")
    as_names("derived", list(derived), len(derived))


def add_derived(
    names: Sequence[str], phi: Tensor, derived: Derived | None
) -> tuple[tuple[str, ...], Tensor]:
    """Return parameters with the quantities derived from them as further columns.

    Args:
        names: of the parameters.
        phi: parameters (n, D).
        derived: by name, functions of a mapping from names to tensors (n,), which has the
            parameters and what was derived before, to a tensor (n,); None for no more.

    Example:
        >>> phi = torch.tensor([[3.0, 2.0], [6.0, 3.0]])
        >>> add_derived(["R0", "period"], phi, {"beta": lambda p: p["R0"] / p["period"]})
        (('R0', 'period', 'beta'), tensor([[3.0000, 2.0000, 1.5000],
                [6.0000, 3.0000, 2.0000]]))
    """
    check_derived(names, derived)
    by_name = dict(zip(names, phi.unbind(1), strict=True))
    for name, function in (derived or {}).items():
        # A copy, so that a function of the user's cannot change the parameters of the others.
        call = partial(function, dict(by_name))
        with calling(f"derived {name!r}", call, parameters=", ".join(by_name)):
            values = call()
        found = as_float_tensor(f"derived {name!r}", values, device=phi.device)
        check_shape(f"derived {name!r}", found, (len(phi),))
        check_finite(f"derived {name!r}", found)
        by_name[name] = found
    return tuple(by_name), torch.stack(list(by_name.values()), dim=1)
