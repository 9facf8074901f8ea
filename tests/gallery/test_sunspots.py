"""The dynamo of the sunspots' study against what is known of it."""

import json
from pathlib import Path

import numpy as np
import pytest

from gallery.sunspots import study


def test_months_are_those_of_the_source():
    months = study.read_months()
    assert months.shape == (3120,)
    # The first, and the highest: October 1957.
    assert months[0] == 58.0
    assert months.argmax() == (1957 - 1749) * 12 + 9
    assert months.max() == 253.8
    # The encoder's channels are months, its axis years.
    assert study.observed[9, 1957 - 1749] ** 2 == pytest.approx(253.8)


def test_without_noise_the_field_solves_its_equation():
    """By differences from month to month, on both sides of the second-order equation."""
    phi = np.array([[6.5, 3.5, 9.0, 0.0, 7.7, 1.0], [3.0, 4.0, 4.0, 0.0, 8.0, 1.0]])
    field = study.toroidal_field(phi, np.random.default_rng(0), steps_per_month=2)
    for months, (tau, delay, number, _, strongest, _) in zip(field, phi, strict=True):
        step = 1 / 12
        speed = np.gradient(months, step)
        left = np.gradient(speed, step) + 2 * speed / tau + months / tau**2
        ago = np.interp(
            np.arange(months.size) - delay * 12, np.arange(months.size), months, left=np.nan
        )
        right = -number / tau**2 * study.source(ago, strongest)
        ok = np.isfinite(right)
        # Where the source is switched on and off, a month's differences are too coarse.
        errors = np.abs(left - right)[ok][2:-2] / np.abs(left[ok]).max()
        assert np.median(errors) < 0.01
        assert np.quantile(errors, 0.8) < 0.05


def test_a_dynamo_that_hears_nothing_dies_and_one_driven_hard_swings():
    driven = [6.5, 3.5, 9.0, 0.0, 7.7, 1.0]
    dead, alive = study.toroidal_field(
        np.array([[5.0, 1.0, 1.0, 0.0, 8.0, 1.0], driven]), np.random.default_rng(0)
    )
    assert np.abs(dead).max() < 1e-3
    assert alive.max() > 3
    assert alive.min() < -3
    # Steps of a month are enough: shorter ones hardly change how high it swings.
    finer = study.toroidal_field(np.array([driven]), np.random.default_rng(0), steps_per_month=3)
    assert np.abs(finer).max() == pytest.approx(np.abs(alive).max(), rel=0.005)


def test_months_scatter_as_said():
    """The mean is B², the variance w B²; four standard errors of 2,000 replicates."""
    w = 12.0
    phi = np.tile([3.0, 4.0, 9.0, 0.0, 8.0, w], (2000, 1))
    mean = study.toroidal_field(phi[:1], np.random.default_rng(0))[0] ** 2
    counts = study.simulator(phi, np.random.default_rng(1)) ** 2
    months = counts.swapaxes(1, 2).reshape(2000, -1)
    busy = mean > 20
    error = np.sqrt(w * mean[busy] / 2000)
    assert np.abs(months[:, busy].mean(0) - mean[busy]).max() < 6 * error.max()
    ratio = months[:, busy].var(0) / mean[busy]
    assert ratio.mean() == pytest.approx(w, rel=0.02)


def test_the_page_quotes_the_result():
    folder = Path(study.__file__).parent
    found = json.loads((folder / "result.json").read_text())
    page = (folder / "README.md").read_text()
    rows = [
        line.split(" | ") for line in page.splitlines() if line.startswith("|") and "to" in line
    ]
    assert len(rows) == len(study.prior.names)
    for (_, mean_and_sd, interval), name in zip(rows, study.prior.names, strict=True):
        values = found["posterior"][name]
        digits = 2 if name == "sigma" else 1
        assert mean_and_sd == f"{values['mean']:.{digits}f} ± {values['sd']:.{digits}f}"
        expected = f"{values['lower']:.{digits}f} to {values['upper']:.{digits}f}"
        assert interval.removesuffix(" |") == expected
    assert f"p = {found['belongs']['p_value']:.2f}" in page
    assert f"p = {found['predictive']['p_value']:.2f}" in page
    covered = [f"{100 * share:.0f}" for share in found["diagnosis"]["covered"].values()]
    assert f"cover {covered[0]}, {covered[1]} and {covered[2]} %" in page
    assert f"{found['diagnosis']['log_ratio']:.1f} nats" in page
