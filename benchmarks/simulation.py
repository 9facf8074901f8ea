r"""Measure simulating, storing and reading, and write what was measured to a result file.

    python benchmarks/simulation.py --size toy|full --only executors,memory,reading,kills \
        --output results/simulation.json

executors   seconds with one process, two worker processes, two processes of a pool and of a dask
            cluster, start of ours included
memory      peak anonymous memory of writing a store and of an epoch of training on windows of it,
            above the interpreter's own
reading     windows per second from a store and from memory, the file cache warm
kills       runs killed at random moments and resumed, a dask worker killed twice, two processes at
            one store: all bit for bit
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

import eande
from eande.foundations.provenance import provenance
from eande.foundations.seeds import generator
from eande.simulation.read.views import draw_view
from eande.studies.memory import PeakAnonymous
from eande.studies.records import ResultFile

PRIOR = eande.BoxPrior([-1, -1], [1, 1])
SHAPE = (250, 396)
WINDOW = 125


@dataclass(frozen=True)
class Size:
    """How much work a run is."""

    slow_simulations: int  # of 50 ms; none where it is 0
    fast_simulations: int  # of 1 ms
    stored: tuple[int, ...]  # simulations of 99,000 numbers, one store each
    kills: int


SIZES = {"toy": Size(0, 40, (40,), 1), "full": Size(240, 4_000, (1_000, 4_000, 16_000), 10)}


def sleeping(phi: np.ndarray, rng: np.random.Generator, seconds: float = 0.0) -> np.ndarray:
    """Simulate for that many seconds per simulation without using the processor."""
    time.sleep(seconds * len(phi))
    return phi + rng.standard_normal(phi.shape)


def busy(phi: np.ndarray, rng: np.random.Generator, seconds: float = 0.0) -> np.ndarray:
    """Simulate for that many seconds of processor time per simulation."""
    until = time.process_time() + seconds * len(phi)
    while time.process_time() < until:
        sum(range(1_000))
    return phi + rng.standard_normal(phi.shape)


def fields(phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Simulate 99,000 numbers each."""
    return phi[:, :1, None] + rng.standard_normal((len(phi), *SHAPE), dtype=np.float32)


def executors(size: Size, record: ResultFile, folder: Path) -> None:
    """Compare executors for simulators of 50 ms and 1 ms.

    Times include the start of our own processes, not that of others.
    """
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool,
    ):
        for other in (client, pool):
            eande.simulate(
                sleeping,
                PRIOR,
                400,
                store=folder / f"warm-{type(other).__name__}.zarr",
                executor=other,
                progress=False,
            )
        for seconds, n, block in (
            (0.05, size.slow_simulations, 10),
            (0.001, size.fast_simulations, 100),
        ):
            if n == 0:
                continue
            found: dict[str, dict[str, float]] = {}
            for kind in (busy, sleeping):
                simulator = partial(kind, seconds=seconds)
                times = {}
                for name in ("serial", "workers", "pool", "dask"):
                    store = folder / f"{kind.__name__}-{seconds}-{name}.zarr"
                    began = time.perf_counter()
                    executor = {"serial": None, "workers": 2, "pool": pool, "dask": client}[name]
                    eande.simulate(
                        simulator,
                        PRIOR,
                        n,
                        store=store,
                        block_size=block,
                        executor=executor,
                        progress=False,
                    )
                    times[name] = time.perf_counter() - began
                found[kind.__name__] = times | {
                    f"speedup_{name}": times["serial"] / took
                    for name, took in times.items()
                    if name != "serial"
                }
            record.add(
                f"executors_{1_000 * seconds:g}_ms",
                {"simulations": n, "block_size": block, **found},
            )


class Flatten(torch.nn.Module):
    """An encoder small enough to leave the memory to the data."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(SHAPE[1], 16)

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        """Embed windows (m, time, variables)."""
        embedded: torch.Tensor = self.linear(y.mean(1))
        return embedded


def write_store(path: str, n: int) -> dict[str, float]:
    """Write a store and return time and memory."""
    import eande.simulation.store.zarr_store  # part of the interpreter's own

    began = time.perf_counter()
    with PeakAnonymous() as memory:
        eande.simulate(fields, PRIOR, n, store=path, progress=False)
    return {"seconds": time.perf_counter() - began, "peak_mb": memory.above}


def train_epoch(path: str) -> dict[str, float]:
    """Train for one epoch on windows of a store and return time and memory."""
    import eande.simulation.read.from_store
    import eande.training.fit

    settings = eande.FitSettings(
        epochs=1,
        batch_size=128,
        embedding_dimension=16,
        width=64,
        normalizer_draws=1_000,
        device="cpu",
    )
    began = time.perf_counter()
    with PeakAnonymous() as memory:
        simulations = eande.Simulations.open(path)
        eande.fit(
            simulations,
            PRIOR,
            encoder=Flatten(),
            views=eande.RandomWindow(WINDOW),
            settings=settings,
            progress=False,
        )
    return {"seconds": time.perf_counter() - began, "peak_mb": memory.above}


def read_windows(path: str) -> dict[str, float]:
    """Return windows per second from a store and from memory."""
    stored = eande.Simulations.open(path)
    rates: dict[str, list[float]] = {"store": [], "memory": []}
    held = stored[:1_000].in_memory()
    view = eande.RandomWindow(WINDOW)
    for turn in range(7):
        for name, simulations in (("store", stored[:1_000]), ("memory", held)):
            index = torch.randperm(len(simulations), generator=generator(turn))
            began = time.perf_counter()
            for rows in index.split(100):
                draw_view(view, simulations.rows(rows), turn)
            rates[name].append(len(index) / (time.perf_counter() - began))
    # The first turn fills the file cache and verifies checksums.
    found = {name: float(np.median(values[1:])) for name, values in rates.items()}
    return {
        **found,
        "ratio": found["store"] / found["memory"],
        "first_pass_with_checksums": rates["store"][0],
    }


MEASURES: dict[str, Callable[..., dict[str, float]]] = {
    "write": write_store,
    "train": train_epoch,
    "read": read_windows,
}


def in_new_process(measure: str, *arguments: object) -> Any:
    """Measure in a new process, whose memory holds nothing of earlier measurements."""
    # The allocator hands large pieces back at once, so that what is measured is what is used.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, __file__, "--measure", measure, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def memory(size: Size, record: ResultFile, folder: Path) -> None:
    """Measure writing and training for stores of different sizes."""
    for n in size.stored:
        path = folder / f"fields-{n}.zarr"
        found = {
            "gigabytes": n * 4 * np.prod(SHAPE).item() / 1e9,
            "write": in_new_process("write", path, n),
            "train": in_new_process("train", path),
        }
        record.add(f"memory_{n}", found)


def reading(size: Size, record: ResultFile, folder: Path) -> None:
    """Compare reading windows from a store and from memory."""
    path = folder / f"fields-{size.stored[0]}.zarr"
    if not path.exists():
        in_new_process("write", path, size.stored[0])
    record.add("windows_per_second", {"window": [WINDOW, SHAPE[1]], **in_new_process("read", path)})


SLOW = """
import sys, time, eande
def slow(phi, rng):
    time.sleep(0.02)
    return phi + rng.standard_normal(phi.shape)
executor = None if sys.argv[2] == "None" else int(sys.argv[2])
prior = eande.BoxPrior([-1, -1], [1, 1])
eande.simulate(
    slow, prior, 1000, store=sys.argv[1], block_size=10, executor=executor, progress=False
)
"""


def kills(size: Size, record: ResultFile, folder: Path) -> None:
    """Kill runs at random moments, resume them, and compare with one that was left alone."""
    expected = eande.simulate(sleeping, PRIOR, 1_000, block_size=10, progress=False)
    rng = random.Random(0)
    runs = []
    for run in range(size.kills):
        path = folder / f"killed-{run}.zarr"
        executor = None if run % 2 == 0 else 2
        process = subprocess.Popen([sys.executable, "-c", SLOW, str(path), str(executor)])
        moment = rng.randrange(1, 95)
        while _commits(path) < moment:
            time.sleep(0.001)
        time.sleep(0.02 * rng.random())
        process.kill()
        process.wait()
        done = _commits(path)
        subprocess.run([sys.executable, "-c", SLOW, str(path), str(executor)], check=True)
        runs.append(
            {
                "executor": executor,
                "blocks_before_the_kill": done,
                "of": 100,
                "identical": _identical(path, expected),
            }
        )
    record.add("killed_and_resumed", runs)
    together = folder / "together.zarr"
    pair = [subprocess.Popen([sys.executable, "-c", SLOW, str(together), "None"]) for _ in range(2)]
    record.add(
        "two_processes",
        {
            "exit_codes": [process.wait() for process in pair],
            "identical": _identical(together, expected),
        },
    )
    record.add("dask_worker_killed_twice", _kill_dask(folder / "dask.zarr", expected))


def _kill_dask(path: Path, expected: eande.Simulations) -> dict[str, Any]:
    from distributed import Client, LocalCluster

    killed: list[int] = []
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):

        def kill() -> None:
            for blocks in (20, 50):
                while _commits(path) < blocks:
                    time.sleep(0.01)
                killed.append(next(iter(cluster.workers.values())).pid)
                os.kill(killed[-1], signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        eande.simulate(
            partial(sleeping, seconds=0.003),
            PRIOR,
            1_000,
            store=path,
            block_size=10,
            executor=client,
            progress=False,
        )
        killer.join()
    return {"killed": len(set(killed)), "identical": _identical(path, expected)}


def _commits(path: Path) -> int:
    return len(list(path.glob("commits/*.json")))


def _identical(path: Path, expected: eande.Simulations) -> bool:
    stored = eande.Simulations.open(path)
    whole = eande.Store(path).check() == {}
    return (
        whole and torch.equal(stored.phi, expected.phi) and torch.equal(stored.y[:], expected.y[:])
    )


PARTS = {"executors": executors, "memory": memory, "reading": reading, "kills": kills}


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=list(SIZES), default="full")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--output", type=Path, default=Path("results/simulation.json"))
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        name, path, *numbers = asked.measure
        print(json.dumps(MEASURES[name](path, *map(int, numbers))))
        return
    size = SIZES[asked.size]
    settings = {"prior": PRIOR.describe(), "shape": SHAPE, "window": WINDOW, **asdict(size)}
    record = ResultFile(
        asked.output,
        study="simulation",
        size=asked.size,
        settings=settings,
        seed=0,
        provenance=provenance("zarr", "distributed"),
    )
    with tempfile.TemporaryDirectory() as folder:
        for part in asked.only.split(","):
            PARTS[part](size, record, Path(folder))


if __name__ == "__main__":
    main()
