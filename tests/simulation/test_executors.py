"""Every executor gives the same simulations."""

import threading
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import pytest
import torch

import eande
from toys import noisy, one

BOX = eande.BoxPrior([-1, -1], [1, 1])


def simulate(simulator, n=60, **options):
    return eande.simulate(simulator, BOX, n, **{"block_size": 8, "progress": False, **options})


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
        most = 0
        now = 0

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


def test_an_executor_that_was_shut_down_is_said():
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(
        eande.SimulationError, match=r"the executor does not take block 0 .*after shutdown"
    ):
        simulate(noisy, executor=pool)
