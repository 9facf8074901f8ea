"""Randomness by name: a seed for every purpose, derived from the user's one seed and a path.

A stream that depends on (seed, purpose, step) alone can be resumed at any step: no generator state
has to be stored, and neither order nor interruption changes a result.

torch is loaded by what needs it: processes that only simulate start in a fraction of the time
without it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def derive_seed(seed: int, *path: int | str) -> int:
    """Return a 63-bit seed that depends on ``seed`` and every step of ``path``.

    Example:
        >>> derive_seed(0, "batch", 3) == derive_seed(0, "batch", 3) != derive_seed(0, "batch", 4)
        True
    """
    text = "/".join(map(str, (seed, *path)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, *path: int | str) -> torch.Generator:
    """Return a CPU generator of its own for this seed and path."""
    import torch

    return torch.Generator().manual_seed(derive_seed(seed, *path))


def seed_global(seed: int, device: torch.device) -> None:
    """Seed torch's global generator and that of a CUDA device.

    ``torch.manual_seed`` seeds every kind of device, and for each that was never used it keeps a
    stack trace: a millisecond, and memory.
    """
    import torch

    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


@contextmanager
def global_seed(seed: int, *path: int | str, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's global generators inside the block, for code that takes none, then restore them.

    Args:
        seed: the user's.
        path: purpose and step.
        device: whose generator to seed beside the CPU's, where it is a CUDA device.
    """
    import torch

    device = device or torch.device("cpu")
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        seed_global(derive_seed(seed, *path), device)
        yield
