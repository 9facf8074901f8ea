"""Samples in the containers that other libraries read: pandas and xarray, loaded when asked for."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from eande.foundations.checks import InputError
from eande.simulation.read.entry import import_xarray

# The one dimension of samples.
_DRAW = "draw"


def as_dataframe(names: Sequence[str], phi: Tensor) -> Any:
    """Return samples (n, D) as a pandas DataFrame, a column per name."""
    try:
        import pandas
    except ImportError:
        raise ImportError("to_dataframe needs pandas: pip install pandas") from None
    return pandas.DataFrame(phi.detach().cpu().numpy(), columns=list(names))


def as_dataset(names: Sequence[str], phi: Tensor, attributes: dict[str, str]) -> Any:
    """Return samples (n, D) as an xarray Dataset, a variable per name."""
    xarray = import_xarray("to_xarray")
    if _DRAW in names:
        raise InputError(f"names: expected parameters with names of their own, got {_DRAW!r}")
    columns = phi.detach().cpu().numpy().T
    variables = {name: (_DRAW, values) for name, values in zip(names, columns, strict=True)}
    return xarray.Dataset(variables, {_DRAW: range(len(phi))}, attributes)
