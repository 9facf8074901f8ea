"""Sources: data that lie elsewhere than in memory, of which no more is read than is asked for.

Training asks for rows by number and, through a view, for a window of each. :class:`Rows` carries
that question to where the data are, so that a window of a long simulation costs the reading of the
window.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eande.foundations.checks import InputError, check_shape


class Source(ABC):
    """Data (n, …) that are read when asked for: ``source[index]`` is a float32 tensor.

    Args:
        rows: the number of each datum at its origin, (n,).
        y_shape: shape of one datum.
    """

    def __init__(self, rows: np.ndarray, y_shape: tuple[int, ...]) -> None:
        self.rows = rows
        self.y_shape = y_shape

    @abstractmethod
    def read(self, row: int, start: int, stop: int, out: np.ndarray) -> None:
        """Read a range of one datum into ``out``.

        Args:
            row: the number of the datum.
            start: first entry along its first axis.
            stop: entry after the last.
            out: array of shape (stop − start, …).
        """

    @abstractmethod
    def subset(self, index: Any) -> Source:
        """Return the source of the chosen data."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a text that changes with the data."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, …), as a tensor's."""
        return (len(self.rows), *self.y_shape)

    @property
    def nbytes(self) -> int:
        """Memory all data would take."""
        return 4 * int(np.prod(self.shape, dtype=np.int64))

    def __len__(self) -> int:
        """Return the number of data."""
        return len(self.rows)

    def __getitem__(self, index: Any) -> Tensor:
        """Read whole data: one for an integer, a batch for any other index of a tensor."""
        chosen = self.rows[as_index(index)]
        rows = np.atleast_1d(chosen)
        data = self._read_all(rows, np.zeros(len(rows), dtype=np.int64), self.y_shape[0])
        return data[0] if np.ndim(chosen) == 0 else data

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Read everything, for numpy and torch."""
        return self[:].numpy().astype(dtype or np.float32, copy=False)

    def windows(self, index: Tensor, starts: Tensor, length: int) -> Tensor:
        """Read a window of that length along the first axis of each chosen datum."""
        return self._read_all(self.rows[as_index(index)], starts.cpu().numpy(), length)

    def _read_all(self, rows: np.ndarray, starts: np.ndarray, length: int) -> Tensor:
        shape = (len(rows), length, *self.y_shape[1:])
        try:
            out = np.empty(shape, dtype=np.float32)
        except MemoryError:
            raise InputError(
                f"y: expected data that fit into memory, got {4 * math.prod(shape)} bytes"
            ) from None
        for row, start, place in zip(rows.tolist(), starts.tolist(), out, strict=True):
            self.read(row, start, start + length, place)
        return torch.from_numpy(out)


class Rows:
    """A batch that has not been read yet: what a view gets that chooses what to read.

    Args:
        y: all data, a tensor or a source.
        index: the rows of the batch (m,).
    """

    def __init__(self, y: Tensor | Source, index: Tensor) -> None:
        self.y = y
        self.index = index

    @property
    def shape(self) -> tuple[int, ...]:
        """(m, …), as of the batch once read."""
        return (len(self.index), *self.y.shape[1:])

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.index)

    def tensor(self) -> Tensor:
        """Read the whole batch."""
        return self.y[self.index]

    def windows(self, starts: Tensor, length: int) -> Tensor:
        """Read a window of that length, from its own start, along the first axis of each datum."""
        check_shape("starts", starts, (len(self),))
        first = int(starts.min()) if len(starts) else 0
        last = int(starts.max()) if len(starts) else 0
        if first < 0 or last + length > self.shape[1]:
            raise InputError(
                f"starts: expected windows of length {length} inside {self.shape[1]} entries, "
                f"got starts from {first} to {last}"
            )
        if isinstance(self.y, Source):
            return self.y.windows(self.index, starts, length)
        if self.y.device.type == "cpu":
            # Copies of contiguous memory: several times faster than indexing entry by entry.
            places = zip(self.index.tolist(), starts.tolist(), strict=True)
            return torch.stack([self.y[i, begin : begin + length] for i, begin in places])
        # Only few numbers go to the device: a large copy would wait there for all earlier work.
        device = self.y.device
        index = self.index.to(device, non_blocking=True).unsqueeze(1)
        starts = starts.to(device, non_blocking=True).unsqueeze(1)
        return self.y[index, starts + torch.arange(length, device=device)]


def take(y: Tensor | Source, index: Any) -> Tensor | Source:
    """Choose data without reading any that lie elsewhere."""
    return y.subset(index) if isinstance(y, Source) else y[index]


def as_index(index: Any) -> Any:
    """Turn an index of a tensor into one of an array; a tensor of one entry stays a list of one."""
    if isinstance(index, Tensor):
        return index.cpu().numpy()
    if isinstance(index, tuple) or index is None:
        raise InputError(
            "y: expected one index for the simulations, got several; "
            "index the tensor that comes back"
        )
    return index


def digest(*tensors: Tensor) -> str:
    """Return a short digest of the bytes of tensors."""
    total = hashlib.sha256()
    for tensor in tensors:
        whole = tensor.detach().cpu().contiguous()
        # What has no numbers may have a stride of zero, of which torch views no bytes.
        flat = whole.as_strided((whole.numel(),), (1,))
        total.update(flat.view(torch.uint8).numpy().data)
    return total.hexdigest()[:16]
