"""A small store, and what must be in it."""

import numpy as np
import torch

import eande

BOX = eande.BoxPrior([-1, -1], [1, 1])
BLOCK = 10


def noisy(phi, rng):
    return np.concatenate([phi, phi**2], axis=1)[:, :3] + 0.1 * rng.standard_normal((len(phi), 3))


def simulate(n, store, **options):
    return eande.simulate(
        noisy, BOX, n, store=store, **{"block_size": BLOCK, "progress": False, **options}
    )


def assert_same(stored, expected):
    assert torch.equal(stored.phi, expected.phi)
    assert torch.equal(stored.y[:], expected.y[:])
    assert torch.equal(stored.failures.phi, expected.failures.phi)
    assert stored.failures.reasons == expected.failures.reasons


def flip(file, where):
    content = bytearray(file.read_bytes())
    content[where % len(content)] ^= 1
    file.write_bytes(content)


def damage(store):
    """Change a bit of the first block of data."""
    flip(min(path for path in (store / "y").rglob("c/*/*") if path.is_file()), 7)
