"""Simulations: pairs of parameters and data, what training reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eande.foundations.checks import (
    InputError,
    as_names,
    check_count,
    check_flag,
    check_instance,
    check_plain,
    check_seed,
    check_shape,
    check_share,
    show_shape,
)
from eande.foundations.seeds import generator
from eande.foundations.tables import html_table
from eande.priors.prior import listed
from eande.simulation.read.from_arrays import read_arrays
from eande.simulation.read.from_files import read_files
from eande.simulation.read.from_table import read_table
from eande.simulation.read.from_xarray import read_xarray
from eande.simulation.read.parts import Failures, as_rows
from eande.simulation.read.sources import Rows, Source, digest, take


class Simulations:
    """Pairs (φ_i, y_i) with a group id each: simulations of the same φ (replicates) share one.

    Made by :func:`eande.simulate`, from its store by :meth:`open`, or from what you have by
    :meth:`from_arrays`, :meth:`from_table`, :meth:`from_files` and :meth:`from_xarray`. Data that
    lie on disk are read when they are asked for: ``simulations.y[i]``.

    Args:
        phi: parameters (n, D), float32.
        y: data, first axis n: a tensor, or a source that reads rows from elsewhere.
        groups: (n,) integers.
        failures: simulations that were tried and gave no data; not counted in ``len``.
        names: one per parameter; None where nobody named them.

    Example:
        >>> import numpy as np
        >>> simulations = Simulations.from_arrays(np.zeros((4, 2)), np.ones((4, 3)))
        >>> len(simulations), simulations.y_shape
        (4, (3,))
    """

    def __init__(
        self,
        phi: Tensor,
        y: Tensor | Source,
        groups: Tensor,
        failures: Failures | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        check_instance("phi", phi, Tensor, "a tensor (from arrays: Simulations.from_arrays)")
        check_instance("y", y, (Tensor, Source), "a tensor (from arrays: Simulations.from_arrays)")
        check_instance("groups", groups, Tensor, "a tensor of whole numbers")
        check_instance("failures", failures, Failures, "Failures or None", optional=True)
        check_plain("phi", phi)
        check_shape("phi", phi, ("n", "D"))
        if isinstance(y, Tensor):
            check_plain("y", y)
        if len(y.shape) < 2 or len(y) != len(phi):
            raise InputError(
                f"y: expected one datum per row of phi, {len(phi)}, got shape {show_shape(y.shape)}"
            )
        check_plain("groups", groups)
        check_shape("groups", groups, (len(phi),))
        for name, tensor in (("phi", phi), ("y", y)):
            if isinstance(tensor, Tensor) and tensor.dtype != torch.float32:
                raise InputError(f"{name}: expected float32 numbers, got {tensor.dtype}")
        self.phi = phi
        self.y = y
        self.groups = groups
        self.failures = Failures(phi[:0], ()) if failures is None else failures
        self.names = None if names is None else as_names("names", names, phi.shape[1])

    @classmethod
    def from_arrays(
        cls,
        phi: Any,
        y: Any,
        *,
        groups: Any = None,
        failed_phi: Any = None,
        missing: bool = False,
    ) -> Simulations:
        """Take parameters (n, D) and data (n, …) you already have; float32 data are not copied.

        Args:
            phi: parameters; a pandas DataFrame names them by its columns.
            y: data.
            groups: rows with equal entries are simulations of one φ.
            failed_phi: parameters (m, D) drawn from the same prior whose simulation gave no data,
                one row per φ. Leaving them out would favour, in the posterior, the parameters that
                often fail.
            missing: whether NaN in y stands for a number that is missing;
                ``FitSettings(missing="mask")`` trains on such data.

        Example:
            >>> phi = [[0.1], [0.2], [0.2]]
            >>> y = [[1.0, 2.0], [3.0, 4.0], [3.5, 4.5]]
            >>> replicates = Simulations.from_arrays(phi, y, groups=["a", "b", "b"])
            >>> replicates.groups
            tensor([0, 1, 1])
        """
        return cls(*read_arrays(phi, y, groups, failed_phi, missing=missing))

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = True) -> Simulations:
        """Open the simulations in a store: while it is still being filled, those complete now.

        Args:
            path: the store's folder.
            verify: whether the checksum of each piece is compared when it is first read; this
                reads the whole piece once.

        Example:
            >>> path = folder / "opened.zarr"
            >>> made = eande.simulate(simulator, prior, n=20, store=path, progress=False)
            >>> Simulations.open(path)
            Simulations(20 of slope, offset and data of shape (10,))
        """
        check_flag("verify", verify)
        # Here and not above: who has no store needs no zarr.
        from eande.simulation.read.from_store import read_store

        return cls(*read_store(path, verify=verify))

    @classmethod
    def from_files(
        cls,
        files: str | Path | Sequence[str | Path],
        *,
        phi: Any = "phi",
        y: str = "y",
        broken: str = "refuse",
        progress: bool = True,
    ) -> Simulations:
        """Read files of one simulation each, data when asked for.

        These are ``.npz`` or NetCDF files; or ``.npy`` and ``.csv`` files, which hold data alone:
        their parameters lie beside them in a table.

        Args:
            files: a folder, a pattern such as ``"members/*.nc"``, or the files themselves. Of a
                folder with files of several kinds those are taken that come first in this list.
            phi: name of the parameters in each file: one vector, or several scalars (NetCDF:
                variables or attributes). Or a table that lies beside the files, with a row for
                each: the path of a CSV file, a pandas DataFrame, or an array (n, D). A column
                ``file`` (or a first one that consists of texts, or such an index of the DataFrame)
                says which file a row belongs to, with or without folder and ending; all other
                columns are parameters. Without it, the rows are in the order of the files: that of
                the list, or of the sorted names.
            y: name of the data in each file; in a ``.csv`` file that of a column. ``"y"`` is the
                whole of a ``.npy`` or ``.csv`` file, where no column is called so.
            broken: what becomes of files that cannot be read, or are unlike the others:
                ``"refuse"`` refuses all; with ``"failed"`` they count as failed simulations, in
                ``simulations.failures`` with the reason. Then all data are read once, to find those
                that are not finite.
            progress: whether to show a progress bar.

        Example:
            >>> members = folder / "members"
            >>> members.mkdir()
            >>> for i in range(3):
            ...     np.savez(members / f"{i}.npz", phi=[0.1 * i, 1.0], y=np.full(7, i))
            >>> Simulations.from_files(members, progress=False)
            Simulations(3 of 2 parameters and data of shape (7,))
        """
        return cls(*read_files(files, phi, y, broken=broken, progress=progress))

    @classmethod
    def from_table(
        cls, table: Any, *, phi: Any, y: Any = None, broken: str = "refuse"
    ) -> Simulations:
        """Take a table with a row per simulation, parameters and data in columns.

        Args:
            table: path of a ``.csv``, ``.tsv``, ``.txt``, ``.parquet`` or ``.feather`` file, or a
                pandas DataFrame.
            phi: names of the columns that are parameters, or patterns, such as ``"theta*"``.
            y: of those that are data; None for all others.
            broken: what becomes of rows whose data are missing or not finite: ``"refuse"`` refuses
                all; with ``"failed"`` they count as failed simulations, in
                ``simulations.failures`` with the reason.

        Example:
            >>> import pandas
            >>> table = pandas.DataFrame({"rate": [0.1, 0.2], "day1": [3, 5], "day2": [4, 7]})
            >>> Simulations.from_table(table, phi="rate", y="day*")
            Simulations(2 of rate and data of shape (2,))
        """
        return cls(*read_table(table, phi, y, broken=broken))

    @classmethod
    def from_xarray(
        cls, dataset: Any, *, phi: str | Sequence[str], y: str, dimension: str
    ) -> Simulations:
        """Take an xarray Dataset, lazily where it is lazy.

        Args:
            dataset: holds parameters and data along a common dimension.
            phi: name of the variable with the parameters (that dimension and one more), or one
                scalar variable's name each.
            y: name of the variable with the data.
            dimension: the dimension along which the simulations lie.

        Example:
            >>> import xarray
            >>> dataset = xarray.Dataset(
            ...     {"rate": ("run", [0.1, 0.2, 0.3]), "level": (("run", "time"), np.ones((3, 7)))}
            ... )
            >>> Simulations.from_xarray(dataset, phi=["rate"], y="level", dimension="run")
            Simulations(3 of rate and data of shape (7,))
        """
        return cls(*read_xarray(dataset, phi, y, dimension))

    def __len__(self) -> int:
        """Return the number of simulations."""
        return len(self.phi)

    def __repr__(self) -> str:
        """Return what is here, in a line."""
        failed = f", {len(self.failures)} failed" if len(self.failures) else ""
        parameters = f"{self.phi.shape[1]} parameters"
        if self.names is not None:
            parameters = listed(self.names)
        return f"Simulations({len(self)} of {parameters} and data of shape {self.y_shape}{failed})"

    def _repr_html_(self) -> str:
        """Return the same as a table, for notebooks, with the range of each parameter."""
        rows = [("simulations", f"{len(self):,}"), ("data", f"shape {show_shape(self.y_shape)}")]
        if len(self.failures):
            rows.append(("failed", f"{len(self.failures):,}"))
        if len(self):
            low, high = self.phi.aminmax(dim=0)
            names = self.names or [f"phi{d + 1}" for d in range(self.phi.shape[1])]
            for name, least, most in zip(names, low.tolist(), high.tolist(), strict=True):
                rows.append((name, f"{least:.4g} to {most:.4g}"))
        return html_table("Simulations", rows)

    @property
    def y_shape(self) -> tuple[int, ...]:
        """Shape of one datum as stored."""
        return tuple(self.y.shape[1:])

    def __getitem__(self, index: Tensor | Sequence[int] | slice) -> Simulations:
        """Return the chosen simulations, with the same share of the failures."""
        index = as_rows("index", index, len(self))
        phi = self.phi[index]
        # Counted in groups: in training each group is one negative, and so is each failure.
        groups = self.groups[index]
        share = len(groups.unique()) / max(1, len(self.groups.unique()))
        kept = round(len(self.failures) * share)
        if kept:
            spread = torch.linspace(0, len(self.failures) - 1, kept).round().long()
        else:
            spread = torch.zeros(0, dtype=torch.long)
        return Simulations(phi, take(self.y, index), groups, self.failures[spread], self.names)

    def rows(self, index: Tensor) -> Rows:
        """Return a batch that is read when a view asks for it."""
        chosen = as_rows("index", index, len(self))
        if isinstance(chosen, slice):
            chosen = torch.arange(len(self))[chosen]
        return Rows(self.y, chosen)

    def in_memory(self, at_most: int | None = None) -> Simulations:
        """Return the simulations with all data in memory.

        Args:
            at_most: bytes; data that take more stay where they are.

        Example:
            >>> simulations.in_memory().y.shape
            torch.Size([500, 10])
        """
        if at_most is not None:
            check_count("at_most", at_most, 0)
        if not isinstance(self.y, Source) or (at_most is not None and self.y.nbytes > at_most):
            return self
        return Simulations(self.phi, self.y[:], self.groups, self.failures, self.names)

    def split(self, fraction: float, *, seed: int = 0) -> tuple[Simulations, Simulations]:
        """Split at random into a large part and a small one of that fraction, by whole groups.

        Example:
            >>> large, small = simulations.split(0.1)
            >>> len(large), len(small)
            (450, 50)
        """
        check_share("fraction", fraction)
        check_seed("seed", seed)
        ids = self.groups.unique()
        check_count("number of different parameters to split", len(ids), 2)
        count = min(max(1, round(fraction * len(ids))), len(ids) - 1)
        chosen = ids[torch.randperm(len(ids), generator=generator(seed, "split"))[:count]]
        small = torch.isin(self.groups, chosen)
        return self[(~small).nonzero()[:, 0]], self[small.nonzero()[:, 0]]

    def fingerprint(self) -> str:
        """Return a text that changes with the simulations.

        It has a digest of all φ and groups, and one of all data in memory; of data elsewhere, what
        their source says of them.

        Example:
            >>> simulations.fingerprint() == simulations[:].fingerprint()
            True
            >>> simulations.fingerprint() == held_out.fingerprint()
            False
        """
        data = self.y.fingerprint() if isinstance(self.y, Source) else digest(self.y)
        parameters = digest(self.phi, self.groups, self.failures.phi)
        return f"{len(self)} of shape {self.y_shape}, {parameters}, {data}"


def first_of_groups(groups: Tensor) -> Tensor:
    """Return the index of the first row of every group, in order.

    Example:
        >>> first_of_groups(torch.tensor([7, 3, 7, 3, 5]))
        tensor([0, 1, 4])
    """
    found, which = groups.unique(return_inverse=True)
    rows = torch.arange(len(groups))
    first = torch.full((len(found),), len(groups)).scatter_reduce(0, which, rows, "amin")
    return first.sort().values
