"""Simulating: the same result wherever it runs, failures that are kept in mind, data that are read when asked for."""

import os
import re
import signal
import subprocess
import threading
import time
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import eande
from conftest import quick_fit
from eande.foundations.seeds import generator
from eande.simulation.read.sources import Rows, Source
from eande.simulation.read.views import draw_view
from eande.training import fit as fit_module
from eande.training.batches import Batches
from eande.training.losses import inter_domain_info_nce
from toys import fragile, noisy, one

BOX = eande.BoxPrior([-1, -1], [1, 1])


def simulate(simulator, n=60, **options):
    return eande.simulate(simulator, BOX, n, **{"block_size": 8, "progress": False, **options})


# --- executors


def dask_client():
    distributed = pytest.importorskip("distributed")
    return distributed.Client(
        n_workers=2, threads_per_worker=2, processes=False, dashboard_address=":0"
    )


EXECUTORS = {
    "workers": lambda: None,
    "threads": lambda: ThreadPoolExecutor(3),
    "processes": lambda: ProcessPoolExecutor(2, mp_context=get_context("spawn")),
    "dask": dask_client,
    "dask's executor": lambda: dask_client().get_executor(),
}


@pytest.mark.parametrize("name", EXECUTORS)
def test_every_executor_gives_the_same(name, tmp_path):
    executor = EXECUTORS[name]() if name != "workers" else 2
    try:
        for simulator in (noisy, eande.each(one)):
            expected = simulate(simulator)
            assert torch.equal(simulate(simulator, executor=executor).y, expected.y)
            stored = simulate(
                simulator, executor=executor, store=tmp_path / type(simulator).__name__
            )
            assert torch.equal(stored.phi, expected.phi)
            assert torch.equal(stored.y[:], expected.y)
    finally:
        if hasattr(executor, "get_executor"):
            executor.close()
        elif hasattr(executor, "shutdown"):
            client = getattr(executor, "_client", None)
            executor.shutdown()
            if client is not None:
                client.close()


def test_worker_processes_take_what_was_defined_anywhere():
    scale = 3.0
    simulated = simulate(lambda phi, rng: scale * phi, 20, executor=1)
    assert torch.equal(simulated.y, 3 * simulated.phi)
    lock = threading.Lock()
    with pytest.raises(
        eande.InputError,
        match=r"simulator: expected one that can be sent to another process, got .*pickle",
    ):
        simulate(lambda phi, rng: phi if lock else None, executor=1)


def test_only_so_many_blocks_are_in_flight():
    class Watching(ThreadPoolExecutor):
        most, now = 0, 0

        def submit(self, *args):
            self.now += 1
            self.most = max(self.most, self.now)
            future = super().submit(*args)
            future.add_done_callback(lambda _: setattr(self, "now", self.now - 1))
            return future

    with Watching(2) as pool:
        simulate(noisy, 800, executor=pool)
    assert 2 <= pool.most <= 4


def test_an_executor_that_breaks_stops_the_run_and_keeps_what_is_there(tmp_path):
    class Breaking(ThreadPoolExecutor):
        count = 0

        def submit(self, *args):
            self.count += 1
            if self.count == 4:
                future = Future()
                future.set_exception(RuntimeError("the power is gone"))
                return future
            return super().submit(*args)

    with (
        Breaking(1) as pool,
        pytest.raises(
            eande.SimulationError,
            match=r"could not run block 3 \(RuntimeError: the power is gone\).*keeps what is",
        ),
    ):
        simulate(noisy, executor=pool, store=tmp_path / "s.zarr")
    assert torch.equal(simulate(noisy, store=tmp_path / "s.zarr").y[:], simulate(noisy).y)


def test_workers_that_cannot_see_the_store_are_found_out(tmp_path):
    class Elsewhere(ThreadPoolExecutor):
        def submit(self, function, simulator, store, job):
            function(simulator, None, job)
            return super().submit(lambda: eande.simulation.run.jobs.Report(job.block, "done"))

    with (
        Elsewhere(1) as pool,
        pytest.raises(
            eande.SimulationError,
            match=r"reported as written, but it is not in .*workers must see that folder",
        ),
    ):
        simulate(noisy, executor=pool, store=tmp_path / "s.zarr")


# --- failures


def fragile_batch(phi, rng):
    if (phi[:, 0] > 0.5).any():
        raise ValueError("too high")
    y = noisy(phi, rng)
    y[phi[:, 0] < -0.8] = np.nan
    return y


def reason_of(phi):
    high, low = phi[:, 0] > 0.5, phi[:, 0] < -0.8
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

    message = r"of \d+ simulations failed, more than failure_limit=0.5 allows: \d+ × ValueError: kind 0; \d+ × .*; \d+ × [^;]*; .*redo='failed'"
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


def test_an_executor_that_was_shut_down_is_said():
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(
        eande.SimulationError, match=r"the executor does not take block 0 .*after shutdown"
    ):
        simulate(noisy, executor=pool)


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


def test_a_hanging_simulation_is_cut_off_and_costs_only_itself():
    expected = simulate(eande.each(one), 40)
    highest = expected.phi[:, 0].max().item()

    def hanging(phi, rng):
        if phi[0] == highest:
            time.sleep(1_000)
        return one(phi, rng)

    with pytest.warns(eande.EandeWarning, match=r"took longer than 0.5 s"):
        done = simulate(eande.each(hanging), 40, executor=2, timeout=0.5)
    assert set(done.failures.reasons) == {"took longer than 0.5 s"}
    assert torch.equal(done.y, expected.y[expected.phi[:, 0] < highest])
    with pytest.warns(eande.EandeWarning, match="timeout is not enforced here"):
        simulate(noisy, timeout=1.0)


def test_a_program_that_hangs_is_cut_off_with_the_simulation_that_ran_it(tmp_path):
    def hanging(phi, rng):
        process = subprocess.Popen(["sleep", "1000"])
        (tmp_path / "pid").write_text(str(process.pid))
        process.wait()

    with (
        pytest.warns(eande.EandeWarning, match="took longer"),
        pytest.raises(eande.SimulationError, match=r"none of 1 .* took longer than 0.5 s"),
    ):
        simulate(eande.each(hanging), 1, executor=1, timeout=0.5, failure_limit=1.0)
    for _ in range(100):
        status = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
        if not status.exists() or status.read_text().split()[2] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("the program still runs")


def test_a_simulation_that_kills_its_process_costs_only_itself():
    highest = simulate(noisy, 16).phi[:, 0].max().item()

    def crashing(phi, rng):
        if phi[0] == highest:
            os.kill(os.getpid(), signal.SIGSEGV)
        return one(phi, rng)

    def crashing_batch(phi, rng):
        if (phi[:, 0] == highest).any():
            os.kill(os.getpid(), signal.SIGKILL)
        return noisy(phi, rng)

    for simulator, code in (
        (eande.each(crashing), -signal.SIGSEGV),
        (crashing_batch, -signal.SIGKILL),
    ):
        with pytest.warns(eande.EandeWarning, match="killed its process"):
            done = simulate(simulator, 16, executor=1)
        assert done.failures.reasons == (f"killed its process 3 times (exit code {code})",)
        assert done.failures.phi[0, 0] == highest
        assert len(done) == 15


def test_a_worker_killed_by_somebody_is_replaced_and_nothing_is_lost(tmp_path):
    def slow(phi, rng):
        (tmp_path / f"{os.getpid()}.pid").touch()
        time.sleep(0.05)
        return noisy(phi, rng)

    def kill_one():
        while not (found := list(tmp_path.glob("*.pid"))):
            time.sleep(0.01)
        os.kill(int(found[0].stem), signal.SIGKILL)

    with ThreadPoolExecutor(1) as other:
        killing = other.submit(kill_one)
        done = simulate(slow, 160, executor=2)
        killing.result()
    assert len(list(tmp_path.glob("*.pid"))) == 3
    assert torch.equal(done.y, simulate(noisy, 160).y)


def test_failed_parameters_are_candidates_of_the_datum_only():
    f, g, failed = (torch.randn(m, 3, generator=generator(i)) for i, m in enumerate((5, 5, 4)))
    scores = f @ torch.cat([g, failed]).T
    by_datum = (scores.logsumexp(1) - scores[range(5), range(5)]).mean()
    by_parameter = ((f @ g.T).logsumexp(0) - scores[range(5), range(5)]).mean()
    phi_y, y_phi = inter_domain_info_nce(f, g, lambda a, b: a @ b.T, failed=failed)
    torch.testing.assert_close(phi_y, by_datum)
    torch.testing.assert_close(y_phi, by_parameter)


def test_failures_keep_their_proportion_in_parts_and_batches():
    simulations = eande.Simulations.from_arrays(
        torch.rand(1_000, 2), torch.rand(1_000, 3), failed_phi=torch.rand(300, 2)
    )
    large, small = simulations.split(0.2, seed=0)
    assert (len(large.failures), len(small.failures)) == (240, 60)
    assert len(simulations[:500].failures) == 150
    # One group of many replicates is one parameter: 100 failures of 100 parameters stay one for one, wherever it goes.
    ids = torch.arange(1_000).clamp(max=99)
    uneven = eande.Simulations.from_arrays(
        torch.rand(100, 2)[ids], torch.rand(1_000, 3), groups=ids, failed_phi=torch.rand(100, 2)
    )
    for seed in range(3):
        for part in uneven.split(0.2, seed=seed):
            assert len(part.failures) == len(part.groups.unique())
    batches = Batches(
        simulations[:100], None, batch_size=7, steps_per_epoch=None, two_views=False, seed=0
    )
    drawn = [len(batch.failed_phi) for epoch in range(40) for batch in batches.epoch(epoch)]
    assert sum(drawn) == pytest.approx(
        40 * 0.3 * (100 - 15), rel=0.05
    )  # a batch of M has M − 1 negatives
    with_bank = Batches(
        simulations[:100],
        None,
        batch_size=10,
        steps_per_epoch=None,
        two_views=False,
        seed=0,
        bank=20,
    )
    assert {len(batch.failed_phi) for batch in with_bank.epoch(1)} == {8, 9}  # 0.3 × (9 + 20)
    large_bank = Batches(
        simulations[:100],
        None,
        batch_size=10,
        steps_per_epoch=None,
        two_views=False,
        seed=0,
        bank=400,
    )
    assert {len(batch.failed_phi) for batch in large_bank.epoch(4)} <= {
        122,
        123,
    }  # 0.3 × (9 + 400), more than there are


def failing_known():
    """y = φ + 0.5 ε, and a simulation fails with probability 1/(1 + e^{−6 φ})."""
    prior, rng = eande.BoxPrior([-1], [1]), np.random.default_rng(0)

    def simulator(phi, rng):
        if rng.random() < 1 / (1 + np.exp(-6 * phi[0])):
            raise RuntimeError("unstable")
        return phi + 0.5 * rng.standard_normal(1)

    grid = torch.linspace(-1, 1, 401).unsqueeze(1)
    y = torch.from_numpy(rng.uniform(-0.8, 0.4, (20, 1))).float()
    log = -((y - grid.T) ** 2) / 0.5 + torch.nn.functional.logsigmoid(-6 * grid.T)
    return prior, simulator, grid, y, log.softmax(1)


def test_failures_that_depend_on_parameters_do_not_bias_the_posterior():
    prior, simulator, grid, ys, exact = failing_known()
    with pytest.warns(eande.EandeWarning, match="failed"):
        simulations = eande.simulate(
            eande.each(simulator), prior, 8_000, failure_limit=0.9, progress=False
        )
    dropped = eande.Simulations.from_arrays(simulations.phi, simulations.y)
    settings = {
        "epochs": 30,
        "temperature": "learn",
        "embedding_dimension": 8,
        "batch_size": 400,
        "learning_rate": 3e-3,
    }
    distance = {}
    for name, data, law in (
        ("kept", simulations, prior),
        ("dropped", dropped, prior),
        ("kept, no prior", simulations, None),
    ):
        model = quick_fit(data, law, **settings)
        fitted = torch.stack(
            [posterior.log_ratio(grid) for posterior in model.posteriors(ys)]
        ).softmax(1)
        distance[name] = ((fitted - exact).abs().sum(1) / 2).mean().item()
    assert distance["kept"] <= 0.1, distance
    assert distance["kept, no prior"] <= 0.1, distance
    assert distance["dropped"] > 0.15, distance


# --- reading


class Counting(Source):
    """Data in memory that count what is read of them."""

    def __init__(self, y, rows=None):
        super().__init__(np.arange(len(y)) if rows is None else rows, tuple(y.shape[1:]))
        self.data, self.numbers = y, [0]

    def read(self, row, start, stop, out):
        out[...] = self.data[row, start:stop]
        self.numbers[0] += out.size

    def subset(self, index):
        chosen = Counting(self.data, self.rows[index])
        chosen.numbers = self.numbers
        return chosen

    def fingerprint(self):
        return "counting"


def test_a_source_behaves_as_the_tensor_it_stands_for():
    y = torch.randn(6, 10, 3)
    source = Counting(y.numpy())
    for index in (
        slice(None),
        slice(1, 4),
        [0, 5],
        torch.tensor([2, 2]),
        np.array([1]),
        3,
        torch.tensor([True, False] * 3),
    ):
        assert torch.equal(source[index], y[index])
    assert torch.equal(source.subset(torch.tensor([4, 1]))[:], y[[4, 1]])
    assert torch.equal(torch.as_tensor(np.asarray(source)), y)
    assert source.shape == y.shape
    with pytest.raises(eande.InputError, match="y: expected one index"):
        _ = source[0, 1]
    with pytest.raises(
        eande.InputError,
        match="starts: expected windows of length 4 inside 10 entries, got starts from 0 to 7",
    ):
        Rows(source, torch.tensor([0, 1])).windows(torch.tensor([0, 7]), 4)


def test_a_window_reads_the_window_and_is_the_same_from_disk_and_memory():
    y = torch.randn(6, 100, 3)
    source, index = Counting(y.numpy()), torch.tensor([3, 1, 5])
    view = eande.Compose(eande.RandomWindow(7), eande.Roll())
    seen = draw_view(view, Rows(source, index), 0, 1)
    assert source.numbers == [3 * 7 * 3]
    assert torch.equal(seen, draw_view(view, Rows(y, index), 0, 1))
    assert torch.equal(
        eande.RandomWindow(7)(y[index], generator(4)),
        eande.RandomWindow(7)(Rows(source, index), generator(4)),
    )


def test_windows_come_from_everywhere_and_are_contiguous():
    y = torch.arange(20.0).expand(4_000, 20)
    seen = eande.RandomWindow(5)(y, generator(0))
    assert torch.equal(seen.diff(dim=1), torch.ones(4_000, 4))
    starts = torch.bincount(seen[:, 0].long(), minlength=16)
    assert len(starts) == 16
    assert starts.min() > 180  # 250 each on average, standard deviation 15


def test_roll_turns_rings_together():
    y = torch.randn(50, 2, 12)
    seen = eande.Roll(sections=(3, 9))(y, generator(0))
    shifts = set()
    for before, after in zip(y, seen, strict=True):
        shift = next(s for s in range(3) if torch.equal(before[:, :3].roll(s, 1), after[:, :3]))
        assert torch.equal(before[:, 3:].roll(3 * shift, 1), after[:, 3:])
        shifts.add(shift)
    assert shifts == {0, 1, 2}
    first = eande.Roll(axis=0)(y.transpose(1, 2), generator(0))
    assert first.shape == (50, 12, 2)


@given(
    groups=st.lists(st.integers(0, 12), min_size=4, max_size=60).filter(
        lambda ids: len(set(ids)) > 1
    ),
    seed=st.integers(0, 5),
)
def test_a_split_never_puts_a_parameter_on_both_sides(groups, seed):
    phi = torch.tensor(groups).unsqueeze(1).float()
    data = torch.arange(len(groups)).unsqueeze(1).float()
    large, small = eande.Simulations.from_arrays(phi, data, groups=groups).split(0.3, seed=seed)
    assert not set(large.phi.flatten().tolist()) & set(small.phi.flatten().tolist())
    assert (
        sorted([*large.y.flatten().tolist(), *small.y.flatten().tolist()])
        == data.flatten().tolist()
    )


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
        similarity="cosine",
        temperature=0.5,
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
    # Two epochs over 270 and a batch ahead, two validations of 30, standardisation and the model's shape: windows of 10 × 2 numbers.
    assert source.numbers[0] <= (2 * 270 + 50 + 2 * 30 + 270 + 20) * 20


def test_an_error_while_reading_ahead_reaches_the_user(tmp_path, monkeypatch):
    monkeypatch.setattr(fit_module, "_SMALL", 0)
    stored = simulate(series, 300, store=tmp_path / "s.zarr", block_size=100)
    file = tmp_path / "s.zarr" / "y" / "c" / "1" / "0" / "0"
    content = bytearray(file.read_bytes())
    content[1000] ^= 255
    file.write_bytes(content)
    with pytest.raises(eande.InputError, match="block 1 damaged"):
        quick_fit_with_views(stored, epochs=1)


# --- an even design


def test_an_even_design_leaves_smaller_holes_and_is_uniform():
    prior = eande.BoxPrior([-15, 0], [15, 1])
    radii = {}
    for design in ("random", "even"):
        # Distance to the nearest of 256 points, in the unit square.
        grid = torch.cartesian_prod(*[(torch.arange(60) + 0.5) / 60] * 2)
        holes = []
        for seed in range(10):
            phi = eande.simulate(
                lambda phi, rng: phi,
                prior,
                256,
                design=design,
                seed=seed,
                block_size=64,
                progress=False,
            ).phi
            unit = (phi - prior.low) / (prior.high - prior.low)
            holes.append(torch.cdist(grid, unit).amin(1).max().item())
            if design == "even":
                counts = torch.histc(unit[:, 0], 16, 0, 1)
                assert counts.min() == counts.max() == 16
        radii[design] = np.mean(holes)
    assert radii["even"] < 0.75 * radii["random"]


def test_blocks_of_an_even_design_continue_one_sequence(tmp_path):
    def make(n, **options):
        return eande.simulate(
            lambda phi, rng: phi,
            eande.BoxPrior([0, 0], [1, 1]),
            n,
            design="even",
            progress=False,
            **options,
        )

    whole = make(64, block_size=64).phi
    assert torch.equal(make(64, block_size=16).phi, whole)
    store = tmp_path / "store"
    make(32, block_size=16, store=store)
    assert torch.equal(make(64, store=store).phi, whole)
    assert not torch.equal(make(64, seed=1).phi, whole)


def test_an_even_design_needs_a_box():
    prior = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
    with pytest.raises(
        eande.InputError, match="design: expected 'random' for a DistributionPrior, got 'even'"
    ):
        eande.simulate(lambda phi, rng: phi, prior, 10, design="even")
    with pytest.raises(
        eande.InputError, match="design: expected one of 'random', 'even', got 'sobol'"
    ):
        eande.simulate(lambda phi, rng: phi, eande.BoxPrior([0], [1]), 10, design="sobol")
