"""A fit reads what it needs from a store, ahead of the steps."""

import numpy as np
import pytest
import torch

import eande
from eande.inference.trained_on import KEPT, NUMBERS
from eande.training import fit as fit_module
from helpers.counted_reads import Counting

BOX = eande.BoxPrior([-1, -1], [1, 1])


def simulate(simulator, n=60, **options):
    return eande.simulate(simulator, BOX, n, **{"block_size": 8, "progress": False, **options})


def series(phi, rng):
    return phi[:, None, :] + 0.3 * rng.standard_normal((len(phi), 40, 2))


def test_a_fit_from_a_store_is_the_fit_from_memory(tmp_path, monkeypatch):
    """Read lazily, ahead of time, in windows: the same weights, bit for bit."""
    in_memory = simulate(series, 300)
    stored = simulate(series, 300, store=tmp_path / "s.zarr")
    options = {"epochs": 2, "batch_size": 50, "view_weight": 0.1}
    expected = quick_fit_with_views(in_memory, **options)
    for limit in (0, 10**9):
        monkeypatch.setattr(fit_module, "_SMALL", limit)
        fitted = quick_fit_with_views(stored, **options)
        assert all(
            torch.equal(a, b)
            for a, b in zip(
                expected.state_dict().values(), fitted.state_dict().values(), strict=True
            )
        )


def quick_fit_with_views(simulations, **options):
    settings = eande.FitSettings(
        similarity=eande.Cosine(0.5),
        embedding_dimension=4,
        width=32,
        blocks=1,
        normalizer_draws=1_000,
        device="cpu",
        **options,
    )
    flat = eande.Compose(eande.RandomWindow(10), lambda y, generator: y.flatten(1))
    return eande.fit(simulations, BOX, views=flat, settings=settings, progress=False)


def test_a_fit_reads_windows_only(monkeypatch):
    monkeypatch.setattr(fit_module, "_SMALL", 0)
    source = Counting(np.random.default_rng(0).standard_normal((300, 4_000, 2)).astype(np.float32))
    simulations = eande.Simulations(BOX.sample(300, seed=0), source, torch.arange(300))
    with pytest.warns(eande.EandeWarning):
        quick_fit_with_views(simulations, epochs=2, batch_size=50)
    # Two epochs over 270 and a batch ahead, two validations of 30, standardisation and the model's
    # shape: windows of 10 × 2 numbers. And the ends of the few by which they are known again.
    windows = (2 * 270 + 50 + 2 * 30 + 270 + 20) * 20
    assert source.numbers[0] <= windows + KEPT * NUMBERS


def test_an_error_while_reading_ahead_reaches_the_user(tmp_path, monkeypatch):
    monkeypatch.setattr(fit_module, "_SMALL", 0)
    stored = simulate(series, 300, store=tmp_path / "s.zarr", block_size=100)
    file = tmp_path / "s.zarr" / "y" / "c" / "1" / "0" / "0"
    content = bytearray(file.read_bytes())
    content[1000] ^= 255
    file.write_bytes(content)
    with pytest.raises(eande.InputError, match="block 1 damaged"):
        quick_fit_with_views(stored, epochs=1)
