"""Failed simulations are kept with their reasons and never become data."""

import re

import numpy as np
import pytest
import torch

import eande
from toys import fragile, noisy, one, unlucky, unlucky_batch

BOX = eande.BoxPrior([-1, -1], [1, 1])


def simulate(simulator, n=60, **options):
    return eande.simulate(simulator, BOX, n, **{"block_size": 8, "progress": False, **options})


def fragile_batch(phi, rng):
    if (phi[:, 0] > 0.5).any():
        raise ValueError("too high")
    y = noisy(phi, rng)
    y[phi[:, 0] < -0.8] = np.nan
    return y


def reason_of(phi):
    high = phi[:, 0] > 0.5
    low = phi[:, 0] < -0.8
    return [
        "ValueError: too high" if a else "NaN in the data" if b else None
        for a, b in zip(high.tolist(), low.tolist(), strict=True)
    ]


@pytest.mark.parametrize("executor", [None, 2])
@pytest.mark.parametrize("stored", [True, False])
def test_failures_are_kept_with_their_reason_and_never_become_data(tmp_path, executor, stored):
    with pytest.warns(
        eande.EandeWarning,
        match=r"\d+ of 400 simulations failed \(.* × ValueError: too high; .* × NaN in the data",
    ):
        done = simulate(
            eande.each(fragile),
            400,
            executor=executor,
            failure_limit=0.8,
            store=tmp_path / "s.zarr" if stored else None,
        )
    assert len(done) + len(done.failures) == 400
    assert torch.isfinite(done.y[:]).all()
    assert (done.phi[:, 0] <= 0.5).all()
    assert (done.phi.abs()[:, 1] <= 0.9).all()
    counts = dict(done.failures.commonest(9))
    assert set(counts) == {
        "ValueError: too high",
        "NaN in the data",
        "infinity in the data, in float32",
        "data of shape (3,) instead of (2,)",
    }
    assert sum(counts.values()) == len(done.failures)
    attempted = torch.cat([done.phi, done.failures.phi])
    everything = simulate(noisy, 400).phi
    assert torch.equal(attempted[attempted[:, 0].argsort()], everything[everything[:, 0].argsort()])


def test_failures_say_what_they_are_in_a_line():
    failures = eande.Simulations.from_arrays(
        torch.rand(3, 2), torch.rand(3, 1), failed_phi=torch.rand(4, 2)
    ).failures
    assert re.fullmatch(r"Failures\(4: 4 × .+\)", repr(failures))
    assert repr(failures[torch.zeros(0, dtype=torch.long)]) == "Failures(0)"
    with pytest.raises(
        eande.InputError, match="failure_limit: expected a share of at most 1, got 7"
    ):
        simulate(noisy, 10, failure_limit=7)


def test_a_batch_that_fails_is_tried_one_by_one():
    with pytest.warns(eande.EandeWarning, match="failed"):
        done = simulate(fragile_batch, 400, failure_limit=0.8)
    assert set(done.failures.reasons) == {"ValueError: too high", "NaN in the data"}
    assert list(done.failures.reasons) == reason_of(done.failures.phi)
    assert reason_of(done.phi) == [None] * len(done)


def test_too_many_failures_stop_the_run_with_the_three_commonest_reasons(tmp_path):
    def hopeless(phi, rng):
        kind = int(4 * rng.random() ** 2)
        raise [ValueError, KeyError, OSError, TypeError][kind](f"kind {kind}")

    message = (
        r"of \d+ simulations failed, more than failure_limit=0.5 allows: \d+ × "
        r"ValueError: kind 0; \d+ × .*; \d+ × [^;]*; .*redo='failed'"
    )
    with pytest.raises(eande.SimulationError, match=message) as caught:
        simulate(eande.each(hopeless), 4000, store=tmp_path / "s.zarr")
    assert "\n" not in str(caught.value)
    assert len(list((tmp_path / "s.zarr" / "commits").iterdir())) < 20  # of 500
    with (
        pytest.warns(eande.EandeWarning, match="failed"),
        pytest.raises(eande.SimulationError, match="none of 20 simulations succeeded"),
    ):
        simulate(eande.each(hopeless), 20, failure_limit=1.0)


def test_one_odd_shape_does_not_make_the_others_odd(tmp_path):
    switch = tmp_path / "broken"
    switch.touch()

    def odd(phi, rng):
        return one(phi, rng)[: 1 if switch.exists() and phi[0] == first else 2]

    first = simulate(eande.each(one)).phi[0, 0].item()
    for store in (None, tmp_path / "s.zarr"):
        with pytest.warns(
            eande.EandeWarning,
            match=r"1 of 60 simulations failed \(1 × data of shape \(1,\) instead of \(2,\)",
        ):
            assert simulate(eande.each(odd), store=store).y_shape == (2,)


def test_another_shape_than_the_stores_is_said(tmp_path):
    switch = tmp_path / "broken"
    switch.touch()

    def simulator(phi, rng):
        return np.zeros((len(phi), 3)) if switch.exists() else noisy(phi, rng)

    simulate(simulator, 8, store=tmp_path / "s.zarr")
    switch.unlink()
    with pytest.raises(eande.SimulationError, match=r"data of shape \(2,\) instead of \(3,\)"):
        simulate(simulator, 60, store=tmp_path / "s.zarr")


def test_when_everything_failed_the_reasons_are_said(tmp_path):
    for store, kind in ((None, eande.SimulationError), (tmp_path / "s.zarr", eande.InputError)):
        with (
            pytest.warns(eande.EandeWarning, match="failed"),
            pytest.raises(kind, match="60 × NaN in the data"),
        ):
            simulate(lambda phi, rng: phi * np.nan, store=store, failure_limit=1.0)


@pytest.mark.parametrize("stored", [False, True])
def test_shapes_that_differ_between_blocks_are_counted(tmp_path, stored):
    def odd(phi, rng):
        return np.zeros(2 if phi[0] > 0 else 3)

    with pytest.raises(
        eande.SimulationError,
        match=r"simulations failed, more than failure_limit=0.1 allows: \d+ × data of shape",
    ):
        simulate(
            eande.each(odd),
            block_size=1,
            failure_limit=0.1,
            store=tmp_path / "s.zarr" if stored else None,
        )


def test_whatever_a_simulator_does_costs_only_itself():
    def masked(phi, rng):
        return np.ma.masked_array(one(phi, rng), mask=[phi[0] > 0.5, False])

    def leaving(phi, rng):
        if phi[0] > 0.5:
            raise SystemExit("that will do")
        return one(phi, rng)

    for function, reason in ((masked, "NaN in the data"), (leaving, "SystemExit: that will do")):
        with pytest.warns(eande.EandeWarning, match=reason):
            done = simulate(eande.each(function))
        assert (done.phi[:, 0] <= 0.5).all()
        assert set(done.failures.reasons) == {reason}
    with pytest.raises(
        eande.InputError, match=r"expected at least one number, got an array of shape \(0,\)"
    ):
        simulate(eande.each(lambda phi, rng: phi[:0]))


def test_reasons_are_one_line():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    def failing(phi, rng):
        raise Mute if phi[0] > 0 else ValueError("first line\nsecond line")

    with pytest.raises(eande.SimulationError) as caught:
        simulate(eande.each(failing))
    assert "ValueError: first line" in str(caught.value)
    assert "second" not in str(caught.value)
    assert "Mute" in str(caught.value)


def test_an_output_that_is_sometimes_none_is_a_failure_and_always_none_a_mistake():
    with pytest.warns(
        eande.EandeWarning,
        match="expected real numbers in an array or tensor, got object in NoneType",
    ):
        done = simulate(eande.each(lambda phi, rng: None if phi[0] > 0.5 else phi))
    assert (done.phi[:, 0] <= 0.5).all()
    with pytest.raises(eande.InputError, match="expected real numbers"):
        simulate(eande.each(lambda phi, rng: None))


def test_failed_simulations_are_tried_again_on_request(tmp_path):
    switch = tmp_path / "broken"
    switch.touch()

    def moody(phi, rng):
        if switch.exists() and phi[0] > 0:
            raise RuntimeError("the licence server is down")
        return one(phi, rng)

    simulator = eande.each(moody)
    with pytest.warns(eande.EandeWarning, match="licence server"):
        partly = simulate(simulator, 60, store=tmp_path / "s.zarr", failure_limit=0.9)
    switch.unlink()
    assert (
        len(simulate(simulator, 60, store=tmp_path / "s.zarr").failures) == len(partly.failures) > 0
    )
    whole = simulate(simulator, 60, store=tmp_path / "s.zarr", redo="failed")
    assert len(whole.failures) == 0
    assert torch.equal(whole.y[:], simulate(eande.each(one)).y)


@pytest.mark.parametrize("executor", [None, 2])
@pytest.mark.parametrize("one_by_one", [False, True])
def test_the_line_in_the_warning_runs_the_failed_simulation_again(executor, one_by_one):
    simulator = eande.each(unlucky) if one_by_one else unlucky_batch
    with pytest.warns(eande.EandeWarning, match="the first alone: ") as caught:
        simulations = eande.simulate(simulator, BOX, 60, seed=3, executor=executor, progress=False)
    line = str(caught[0].message).partition("the first alone: ")[2]
    names = {"np": np, "simulator": unlucky_batch, "function": unlucky}
    with pytest.raises(ValueError) as raised:  # noqa: PT011 (its message is compared below)
        eval(line, names)
    assert str(raised.value) in " ".join(simulations.failures.reasons)
