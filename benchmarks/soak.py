"""An hour of trouble: kills, full and broken disks, several writers, fuzzed files.

    python benchmarks/soak.py --minutes 60 --seed 0

Rounds are repeated until the time is up, two at a time; each is a scenario chosen by its seed:

    kill-store       simulate into a store: killed, extended, done again after failures and damage
    kill-fit         fit with a checkpoint, killed
    kill-save        a model saved over another, killed
    kill-reproduce   ``eande reproduce synthetic`` at toy size, killed
    fault-store, fault-fit, fault-save, fault-results
                     the same under a disk that is full, broken, slow or takes half a write
    writers          four writers, a reader and a trainer on one store
    fuzz-results, fuzz-model, fuzz-store
                     documents with one thing wrong

After each kill or fault all that was complete is there bit for bit, the same call goes on to the
result of an uninterrupted one, and neither strays nor orphans are left. What fails is in the ledger
with the seed that shows it again: ``--only SCENARIO --seed N --rounds 1``. Exit code 1 if there is.

This process imports everything once, and every process to be killed is forked from it: milliseconds
instead of seconds. It uses no threads, so neither zarr nor a fit runs in it.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from faults import KINDS, OPERATIONS, Fault, install

import eande
from eande.foundations.files import StorageError, read_tensors, write_tensors
from eande.foundations.provenance import provenance
from eande.studies.records import ResultFile, StoredRuns

# The documents of every kind, and what reads them, are those of the tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from helpers import result_files
from helpers.fuzz import fuzz_sealed, fuzzed

# Loaded by their first use otherwise, in every process anew.
for module in ("eande.simulation.simulate", "eande.simulation.store.zarr_store", "zarr"):
    import_module(module)
import_module("eande.training.fit")

PRIOR = eande.BoxPrior([-1, -1], [1, 1])
BLOCK = 10
# What a child ends with: done, refused in one line of ours, anything else.
DONE = 0
REFUSED = 3
RAW = 4
# Added to it where a fault was met.
HIT = 8
LONGEST_LINE = 2_000
SECONDS_FOR_ORPHANS = 5.0
SECONDS_FOR_A_DOCUMENT = 5.0
MARK = "EANDE_SOAK"
OURS = (eande.InputError, eande.SimulationError, StorageError)


class Failed(Exception):
    """Something was not as it must be."""


@dataclass
class Round:
    """One scenario with its seed: a folder, a generator, and what happened.

    Args:
        folder: of its own.
        seed: of all that is random.
    """

    folder: Path
    seed: int
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.log = self.folder / "said"

    def run(self, work: Callable[[], object], fault: Fault | None = None) -> int:
        """Run something in a forked process to its end; return how it ended."""
        code = os.waitstatus_to_exitcode(os.waitpid(self._fork(work, fault), 0)[1])
        if code >= HIT:
            self.counts["faults"] += 1
            code -= HIT
        if code not in (DONE, REFUSED):
            raise Failed(f"ended with {code}: {self.said()}")
        return code

    def must(self, work: Callable[[], object]) -> None:
        """Run something that must succeed."""
        if self.run(work) != DONE:
            raise Failed(f"refused: {self.said()}")

    def kill(self, work: Callable[[], object], within: float) -> bool:
        """Run something and kill it at a random moment; say whether it was still running."""
        child = self._fork(work, None)
        end = time.monotonic() + within * self.rng.random()
        while time.monotonic() < end:
            if os.waitpid(child, os.WNOHANG)[0]:
                return False
            time.sleep(0.001)
        os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        killed = status == -signal.SIGKILL
        if not killed and status != DONE:
            raise Failed(f"ended with {status}: {self.said()}")
        self.counts["kills"] += killed
        self.no_orphans()
        return killed

    def together(self, *works: Callable[[], object]) -> None:
        """Run several things at the same time, all of which must succeed."""
        alone = self.log
        started = []
        for number, work in enumerate(works):
            self.log = alone.with_name(f"said-{number}")
            started.append((self._fork(work, None), self.log))
        for child, self.log in started:
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if code != DONE:
                raise Failed(f"one of several ended with {code}: {self.said()}")
        self.log = alone

    def _fork(self, work: Callable[[], object], fault: Fault | None) -> int:
        child = os.fork()
        if child:
            return child
        code = RAW
        try:
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.environ[MARK] = str(self.folder)
            warnings.simplefilter("ignore")
            if fault is not None:
                install(fault)
            work()
            code = DONE
        except OURS as error:
            line = str(error)
            os.write(2, line.encode(errors="replace"))
            code = REFUSED if "\n" not in line and len(line) < LONGEST_LINE else RAW
        except BaseException:
            os.write(2, traceback.format_exc().encode(errors="replace"))
        finally:
            os._exit(code + HIT if fault is not None and fault.hit else code)

    def said(self) -> str:
        """Return the end of what the latest process wrote."""
        return self.log.read_text(errors="replace")[-1_500:]

    def no_orphans(self) -> None:
        """Refuse processes of this round that nobody waits for."""
        end = time.monotonic() + SECONDS_FOR_ORPHANS
        while found := _marked(self.folder):
            if time.monotonic() > end:
                raise Failed(f"processes live on: {found}")
            time.sleep(0.05)

    def no_strays(self) -> None:
        """Refuse temporary files."""
        strays = [str(path) for path in self.folder.rglob("*.tmp")]
        if strays:
            raise Failed(f"left behind: {strays}")

    def fault(self, below: Path, within: int) -> Fault:
        """Return a random fault at one of the first operations."""
        return Fault(
            below,
            self.rng.choice(OPERATIONS),
            self.rng.choice(KINDS),
            self.rng.randrange(within),
            lasting=self.rng.random() < 0.5,
        )


def _marked(folder: Path) -> list[int]:
    """Return the programs that processes of a round have started and that still run (Linux)."""
    mark = f"{MARK}={folder}".encode()
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in environment.read_bytes().split(b"\0"):
                found.append(int(environment.parent.name))
    return found


def digest(*tensors: torch.Tensor) -> str:
    """Return a checksum of numbers."""
    together = hashlib.sha256()
    for tensor in tensors:
        together.update(tensor.detach().contiguous().numpy().tobytes())
    return together.hexdigest()


# Stores.


def simulator(phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return noisy squares; where a file says so, some fail."""
    time.sleep(0.004)
    y = np.concatenate([phi, phi**2], axis=1)[:, :3] + 0.1 * rng.standard_normal((len(phi), 3))
    if os.path.exists(os.environ.get("EANDE_SOAK_FAILS", "")):
        y[phi[:, 0] > 0.7] = np.nan
    return y


@dataclass(frozen=True)
class Plan:
    """A store to be made: a number of simulations, then a larger one."""

    path: Path
    sizes: tuple[int, ...]
    executor: int | None
    seed: int
    redo: str | None

    def simulate(self, store: Path | None, *, redo: str | None = None) -> eande.Simulations:
        """Make it."""
        # A store that was extended takes no smaller number any more.
        shape = (store or self.path) / "phi" / "zarr.json"
        least = json.loads(shape.read_text())["shape"][0] if store and shape.exists() else 0
        for n in [n for n in self.sizes if n >= least]:
            made = eande.simulate(
                simulator,
                PRIOR,
                n,
                store=store,
                seed=self.seed,
                block_size=BLOCK,
                executor=self.executor,
                redo=redo if n == self.sizes[-1] else None,
                failure_limit=1.0,
                progress=False,
            )
        return made

    def verify(self, expected: str) -> None:
        """Compare the store with what an uninterrupted run has made."""
        made = eande.Simulations.open(self.path)
        if eande.Store(self.path).check() != {}:
            raise Failed("the store is damaged")
        if digest(made.phi, made.y[:]) != expected:
            raise Failed("the store differs from that of an uninterrupted run")


def _plan(round: Round) -> Plan:
    first = BLOCK * round.rng.randrange(3, 12)
    sizes = (first, first + BLOCK * round.rng.randrange(1, 8))
    executor = 2 if round.rng.random() < 0.25 else None
    redo = round.rng.choice([None, None, "failed", "damaged"])
    return Plan(round.folder / "s.zarr", sizes, executor, round.rng.randrange(1_000), redo)


def _whole(round: Round, plan: Plan) -> str:
    """Make the same store in one go, beside it; return the checksum of what is in it."""
    whole = round.folder / "whole.zarr"

    def make(redo: str | None = None) -> None:
        made = replace(plan, executor=None).simulate(whole, redo=redo)
        (round.folder / "expected").write_text(digest(made.phi, made.y[:]))

    if plan.redo != "failed":
        round.must(make)
    else:
        flag = _failing(round)
        round.must(make)
        flag.unlink()
        round.must(lambda: make("failed"))
    return (round.folder / "expected").read_text()


def _failing(round: Round) -> Path:
    """Let some simulations fail, as long as the file is there that this returns."""
    flag = round.folder / "fails"
    os.environ["EANDE_SOAK_FAILS"] = str(flag)
    flag.touch()
    return flag


def _good(path: Path) -> dict[bytes, bytes]:
    """Return the simulations of a store that succeeded, data by parameters."""
    made = eande.Simulations.open(path)
    return {
        phi.numpy().tobytes(): y.numpy().tobytes()
        for phi, y in zip(made.phi, made.y[:], strict=True)
    }


def _shards(path: Path) -> list[Path]:
    return sorted(file for file in (path / "y" / "c").rglob("*") if file.is_file())


def _complete(path: Path) -> dict[str, str]:
    """Return the files of every block that is complete, with their checksums."""
    found = {}
    for commit in path.glob("commits/*.json"):
        block = int(commit.stem)
        for file in (commit, *path.glob(f"phi/c/{block}/*"), *path.glob(f"y/c/{block}/*")):
            found[str(file)] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def _keeps(before: dict[str, str]) -> None:
    for name, checksum in before.items():
        path = Path(name)
        if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != checksum:
            raise Failed(f"{name}: was complete, and is not as it was")


def _prepare(round: Round, plan: Plan) -> None:
    """Make the store that is to be done again, with failed or damaged simulations."""
    if plan.redo == "failed":
        flag = _failing(round)
        round.must(lambda: plan.simulate(plan.path))
        flag.unlink()
    elif plan.redo == "damaged":
        round.must(lambda: plan.simulate(plan.path))
        for file in round.rng.sample(_shards(plan.path), 2):
            _flip(file, round.rng)


def _troubled(plan: Plan, trouble: Callable[[Callable[[], object]], None]) -> None:
    """Run simulate under some trouble; what was complete must still be there."""
    before = {} if plan.redo else _complete(plan.path)
    good = _good(plan.path) if plan.redo == "failed" else {}
    trouble(lambda: plan.simulate(plan.path, redo=plan.redo))
    _keeps(before)
    if good and not good.items() <= _good(plan.path).items():
        raise Failed("simulations that had succeeded are lost or changed")


def kill_store(round: Round) -> None:
    """Kill simulate again and again; then let it end."""
    plan = _plan(round)
    began = time.monotonic()
    expected = _whole(round, plan)
    # Workers need a second to start.
    within = 0.7 * (time.monotonic() - began) + (0.0 if plan.executor is None else 1.0)
    _prepare(round, plan)
    for _ in range(round.rng.randrange(3, 8)):
        _troubled(plan, lambda work: round.kill(work, within))
    round.must(lambda: plan.simulate(plan.path, redo=plan.redo))
    round.must(lambda: plan.verify(expected))
    round.no_strays()
    round.no_orphans()


def _flip(file: Path, rng: random.Random) -> None:
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1
    file.write_bytes(content)


def fault_store(round: Round) -> None:
    """Let a disk fail under simulate."""
    plan = replace(_plan(round), executor=None)
    expected = _whole(round, plan)
    _prepare(round, plan)
    for _ in range(4):
        fault = round.fault(plan.path, 40)
        _troubled(plan, lambda work, fault=fault: round.run(work, fault))
    round.must(lambda: plan.simulate(plan.path, redo=plan.redo))
    round.must(lambda: plan.verify(expected))
    round.no_strays()


def writers(round: Round) -> None:
    """Let four processes write, one read and one train at the same time."""
    plan = _plan(round)
    plan = replace(plan, sizes=plan.sizes[-1:], executor=None, redo=None)
    expected = _whole(round, plan)

    def read() -> None:
        while True:
            with contextlib.suppress(eande.InputError):
                made = eande.Simulations.open(plan.path)
                if len(made) and not torch.isfinite(made.y[:]).all():
                    raise Failed("read what nobody wrote")
                if len(made) == plan.sizes[-1]:
                    return
            time.sleep(0.01)

    def train() -> None:
        while True:
            with contextlib.suppress(eande.InputError):
                made = eande.Simulations.open(plan.path)
                if len(made) >= 2 * BLOCK:
                    small_fit(made)
                    return
            time.sleep(0.01)

    round.together(*[lambda: plan.simulate(plan.path)] * 4, read, train)
    round.must(lambda: plan.verify(expected))
    round.no_strays()


# Models.


def small_fit(data: eande.Simulations, **options: Any) -> eande.EmbedAndEmulate:
    """Fit a small model; of no given length, by two runs that are compared."""
    torch.set_num_threads(1)
    epochs = options.pop("epochs", 2)
    settings = eande.FitSettings(
        epochs=epochs,
        max_steps=600 if epochs is None else None,
        repulsion="both",
        batch_size=20,
        embedding_dimension=4,
        width=8,
        blocks=0,
        normalizer_draws=100,
        device="cpu",
        checkpoint_seconds=0.0,
        seed=options.pop("seed", 0),
    )
    return eande.fit(data, PRIOR, validation=0.3, settings=settings, progress=False, **options)


def _data() -> eande.Simulations:
    phi = PRIOR.sample(80, seed=0)
    return eande.Simulations.from_arrays(phi, torch.cat([phi, phi**2], dim=1))


def _weights(model: eande.EmbedAndEmulate) -> str:
    return digest(*model.encoder.state_dict().values(), *model.emulator.state_dict().values())


def _fit(round: Round, name: str, checkpoint: Path | None) -> Callable[[], object]:
    epochs = None if round.seed % 4 == 0 else 4 + round.seed % 8

    def work() -> None:
        model = small_fit(_data(), epochs=epochs, seed=round.seed % 1_000, checkpoint=checkpoint)
        (round.folder / name).write_text(_weights(model))

    return work


def _same_fit(round: Round) -> None:
    if (round.folder / "made").read_text() != (round.folder / "expected").read_text():
        raise Failed("the weights differ from those of an uninterrupted fit")


def kill_fit(round: Round) -> None:
    """Kill fit again and again; then let it end."""
    began = time.monotonic()
    round.must(_fit(round, "expected", None))
    within = 1.5 * (time.monotonic() - began)
    work = _fit(round, "made", round.folder / "checkpoint")
    for _ in range(round.rng.randrange(2, 6)):
        round.kill(work, within)
    round.must(work)
    _same_fit(round)
    round.no_strays()


def fault_fit(round: Round) -> None:
    """Let a disk fail under the checkpoints of a fit."""
    round.must(_fit(round, "expected", None))
    work = _fit(round, "made", round.folder / "checkpoint")
    for _ in range(3):
        round.run(work, round.fault(round.folder / "checkpoint", 12))
    round.must(work)
    _same_fit(round)
    round.no_strays()


def _two_models(round: Round) -> set[str]:
    """Save two models; return the checksums of their tensors."""

    def make() -> None:
        for name, seed in (("a", 0), ("b", 1)):
            small_fit(_data(), seed=seed).save(round.folder / f"{name}.eande")

    round.must(make)
    return {_content(round.folder / f"{name}.eande") for name in "ab"}


def _content(path: Path) -> str:
    # Not of the file: safetensors writes names in any order.
    tensors = read_tensors(path, "model")[1]
    return digest(*(tensors[name] for name in sorted(tensors)))


def _save(round: Round, times: int) -> Callable[[], object]:
    def work() -> None:
        models = [eande.load(round.folder / f"{name}.eande") for name in "ab"]
        for number in range(times):
            models[number % 2].save(round.folder / "model.eande")

    return work


def _one_of_both(round: Round, known: set[str]) -> None:
    path = round.folder / "model.eande"
    if not path.exists():
        raise Failed("a model that was saved is gone")
    if _content(path) not in known:
        raise Failed("the file is neither the old model nor the new one")


def kill_save(round: Round) -> None:
    """Kill a process that saves one model over another."""
    known = _two_models(round)
    round.must(_save(round, 1))
    for _ in range(12):
        round.kill(_save(round, 100), 0.3)
        _one_of_both(round, known)
    round.must(_save(round, 2))
    _one_of_both(round, known)
    round.no_strays()


def fault_save(round: Round) -> None:
    """Let a disk fail under a model that is saved."""
    known = _two_models(round)
    round.must(_save(round, 1))
    for _ in range(8):
        round.run(_save(round, 4), round.fault(round.folder / "model.eande", 8))
        _one_of_both(round, known)
    round.must(_save(round, 2))
    round.no_strays()


# Results.


def _runs(path: Path) -> dict[Any, dict[str, Any]]:
    """Return the runs of the synthetic study, without what differs from day to day."""
    if not path.exists():
        return {}
    return {
        (run["kappa"], run["redundant"], run["seed"]): {
            name: value for name, value in run.items() if name not in ("seconds", "provenance")
        }
        for run in json.loads(path.read_text())["runs"]
    }


def kill_reproduce(round: Round) -> None:
    """Kill a study at toy size, with its worker processes."""
    output = round.folder / "out"
    command = [sys.executable, "-W", "ignore", "-m", "eande", "reproduce", "synthetic"]
    command += ["--size", "toy", "--seeds", "1", "--first-seed", str(round.seed % 3)]

    def work() -> None:
        os.execv(sys.executable, [*command, "--processes", "2", "--output", str(output)])

    known: dict[Any, dict[str, Any]] = {}
    for _ in range(3):
        round.kill(work, 25.0)
        found = _runs(output / "synthetic.json")
        if any(found.get(key) != run for key, run in known.items()):
            raise Failed("a run that was complete is gone or changed")
        known |= found
    round.must(work)
    if len(_runs(output / "synthetic.json")) != 4:
        raise Failed("not all runs are there")
    round.no_strays()
    round.no_orphans()


def fault_results(round: Round) -> None:
    """Let a disk fail under a result file."""
    base = result_files.small("sbibm")
    path = round.folder / "out" / "sbibm.json"
    path.parent.mkdir()
    head = {name: base[name] for name in ("study", "size", "settings", "published")}

    def add(seeds: range) -> Callable[[], object]:
        def work() -> None:
            kind = result_files.KINDS["sbibm"]
            stored = StoredRuns(path, kind, head, ("task", "simulations", "seed"))
            for seed in seeds:
                if stored.find(seed=seed) is None:
                    stored.add(base["runs"][0] | {"seed": seed})

        return work

    known: set[int] = set()
    for number in range(6):
        round.run(add(range(3 * number, 3 * number + 3)), round.fault(path.parent, 12))
        found = (
            {run["seed"] for run in json.loads(path.read_text())["runs"]}
            if path.exists()
            else set()
        )
        if not known <= found:
            raise Failed("a run that was complete is gone")
        known = found
    round.must(add(range(18)))
    if len(json.loads(path.read_text())["runs"]) != 18:
        raise Failed("not all runs are there")
    round.no_strays()


# Documents.


def _judge(round: Round, work: Callable[[], object], change: str) -> None:
    began = time.monotonic()
    try:
        round.run(work)
    except Failed as failed:
        raise Failed(f"{change}: {failed}") from None
    if time.monotonic() - began > SECONDS_FOR_A_DOCUMENT:
        raise Failed(f"{change}: took {time.monotonic() - began:.1f} s")
    round.counts["documents"] += 1


def fuzz_results(round: Round) -> None:
    """Give studies, pages and figures result files with one thing wrong."""
    for number in range(10):
        name = round.rng.choice([*result_files.KINDS, "samplers"])
        base = result_files.small(name)
        path = round.folder / str(number) / f"{name}.json"
        path.parent.mkdir()
        text, change = fuzzed(base, round.rng)
        path.write_text(text)
        work = partial(result_files.consume, name, path, base)
        _judge(round, work, f"{name}: {change}")


def fuzz_model(round: Round) -> None:
    """Load models with one thing wrong in their document, or a byte."""
    _two_models(round)
    path = round.folder / "fuzzed.eande"
    document, tensors = read_tensors(round.folder / "a.eande", "model")
    for _ in range(20):
        text, change = fuzzed(document, round.rng)
        try:
            write_tensors(path, "model", json.loads(text), tensors)
        except (RecursionError, ValueError):
            continue  # what json itself cannot hold
        if round.rng.random() < 0.2:
            _flip(path, round.rng)
        _judge(round, partial(eande.load, path), f"model: {change}")


def fuzz_store(round: Round) -> None:
    """Open stores with one thing wrong in one of their documents."""
    plan = _plan(round)
    _whole(round, plan)
    path = round.folder / "whole.zarr"

    def read() -> None:
        made = eande.Simulations.open(path)
        made.y[:]
        eande.Store(path).check()

    for _ in range(40):
        file = round.rng.choice([*path.rglob("zarr.json"), *path.glob("commits/*.json")])
        before = file.read_bytes()
        change = fuzz_sealed(file, round.rng)
        _judge(round, read, f"{file.relative_to(path)}: {change}")
        file.write_bytes(before)


# How often each is chosen: the one that takes a minute seldom.
SCENARIOS: dict[str, tuple[Callable[[Round], None], float]] = {
    "kill-store": (kill_store, 4),
    "kill-fit": (kill_fit, 2),
    "kill-save": (kill_save, 2),
    "kill-reproduce": (kill_reproduce, 0.25),
    "fault-store": (fault_store, 3),
    "fault-fit": (fault_fit, 1),
    "fault-save": (fault_save, 1),
    "fault-results": (fault_results, 2),
    "writers": (writers, 1),
    "fuzz-results": (fuzz_results, 1),
    "fuzz-model": (fuzz_model, 1),
    "fuzz-store": (fuzz_store, 1),
}


def play(scenario: str, seed: int) -> dict[str, Any]:
    """Play one round; return what happened."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        # Not a link, as /tmp is on macOS: faults compare paths.
        round = Round(Path(folder).resolve(), seed)
        problem = None
        try:
            SCENARIOS[scenario][0](round)
        except Failed as failed:
            problem = str(failed)
        except Exception:
            problem = traceback.format_exc()
    seconds = time.monotonic() - began
    return {"scenario": scenario, "seed": seed, "problem": problem, "seconds": seconds} | dict(
        round.counts
    )


def rounds(only: list[str], seed: int, lane: int, lanes: int, end: float, most: int) -> Iterator:
    """Play the rounds of one lane until the time is up."""
    for number in range(lane, most, lanes):
        if time.monotonic() > end:
            return
        weights = [SCENARIOS[name][1] for name in only]
        (scenario,) = random.Random(f"{seed + number}").choices(only, weights)
        yield play(scenario, seed + number)


def main() -> None:
    """Play rounds until the time is up."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0, help="of the first round; each has the next")
    parser.add_argument("--only", nargs="+", choices=list(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--rounds", type=int, default=10**9, help="at most")
    parser.add_argument("--lanes", type=int, default=2, help="rounds at a time")
    parser.add_argument("--output", type=Path, default=Path("results/soak.json"))
    asked = parser.parse_args()
    file = ResultFile(
        asked.output,
        study="soak",
        size=f"{asked.minutes:g} minutes",
        settings={"minutes": asked.minutes, "only": asked.only, "lanes": asked.lanes},
        seed=asked.seed,
        provenance=provenance("zarr", "msgspec"),
    )
    end = time.monotonic() + 60 * asked.minutes
    reading, writing = os.pipe()
    lanes = []
    for lane in range(asked.lanes):
        child = os.fork()
        if not child:
            os.close(reading)
            os.setsid()
            for played in rounds(asked.only, asked.seed, lane, asked.lanes, end, asked.rounds):
                # Shorter than what a pipe takes in one piece.
                played["problem"] = played["problem"] and played["problem"][-1_500:]
                os.write(writing, f"{json.dumps(played)}\n".encode())
            os._exit(0)
        lanes.append(child)
    os.close(writing)
    totals: dict[str, Counter[str]] = {name: Counter() for name in asked.only}
    failures = []
    with open(reading) as lines:
        for line in lines:
            played = json.loads(line)
            total = totals[played["scenario"]]
            total["rounds"] += 1
            for name in ("kills", "faults", "documents"):
                total[name] += played.get(name, 0)
            if played["problem"]:
                total["failures"] += 1
                command = f"--only {played['scenario']} --seed {played['seed']} --rounds 1"
                failures.append({"again": command, "problem": played["problem"]})
                print(f"{command}\n{played['problem']}", flush=True)
    for lane in lanes:
        if os.waitpid(lane, 0)[1]:
            failures.append({"again": "", "problem": "a lane ended before its time"})
    file.add("scenarios", {name: dict(total) for name, total in totals.items()})
    file.add("totals", dict(sum(totals.values(), Counter())))
    file.add("failures", failures)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
