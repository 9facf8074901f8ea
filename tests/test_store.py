"""The store: what survives kills, damage and company, bit for bit; what is refused, in one line."""

import contextlib
import errno
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import eande
from eande.foundations.seeds import derive_seed
from eande.simulation.run.blocks import block_sizes
from eande.simulation.store import zarr_store as store_module
from eande.simulation.store.commits import CommitRecord
from eande.simulation.store.provenance import describe_simulator
from eande.simulators.von_mises_fisher import VonMisesFisher

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


@pytest.fixture
def expected():
    return eande.simulate(noisy, BOX, 45, block_size=BLOCK, progress=False)


def test_a_store_holds_what_memory_would_and_is_plain_zarr(tmp_path, expected):
    stored = simulate(45, tmp_path / "s.zarr")
    assert_same(stored, expected)
    assert_same(eande.Simulations.open(tmp_path / "s.zarr"), expected)
    group = zarr.open_group(tmp_path / "s.zarr", mode="r")
    assert np.array_equal(group["y"][:45], expected.y.numpy())
    assert np.isnan(group["y"][45:]).all()
    assert np.array_equal(group["phi"][:45], expected.phi.numpy())
    assert len(list((tmp_path / "s.zarr" / "locks").iterdir())) == 1  # those of blocks are gone


def test_an_extension_keeps_what_is_there_and_starts_a_new_block(tmp_path, expected):
    path = tmp_path / "s.zarr"
    simulate(45, path)
    before = {file: file.read_bytes() for file in path.rglob("c/*/**/*") if file.is_file()}
    longer = simulate(80, path)
    assert len(longer) == 80
    assert torch.equal(longer.y[:45], expected.y)
    assert all(file.read_bytes() == content for file, content in before.items())
    assert_same(simulate(80, path), longer)
    # Where the first extent is a whole number of blocks, extending is the same as asking for all at once.
    simulate(50, tmp_path / "t.zarr")
    assert_same(
        simulate(80, tmp_path / "t.zarr"),
        eande.simulate(noisy, BOX, 80, block_size=BLOCK, progress=False),
    )


def test_nothing_is_simulated_twice(tmp_path):
    calls = []

    def counting(phi, rng):
        calls.append(len(phi))
        return noisy(phi, rng)

    for n in (20, 20, 45, 45):
        eande.simulate(
            counting, BOX, n, store=tmp_path / "s.zarr", block_size=BLOCK, progress=False
        )
    assert calls == [10, 10, 10, 10, 5]


SLOW = """
import sys, time, numpy as np, eande
def slow(phi, rng):
    open(sys.argv[2], "a").write("x")
    time.sleep(0.02)
    return np.concatenate([phi, phi**2], axis=1)[:, :3] + 0.1 * rng.standard_normal((len(phi), 3))
executor = None if sys.argv[3] == "None" else int(sys.argv[3])
eande.simulate(slow, eande.BoxPrior([-1, -1], [1, 1]), int(sys.argv[4]), store=sys.argv[1], block_size=10, executor=executor, progress=False)
"""


def start(path, n, executor=None):
    return subprocess.Popen(
        [sys.executable, "-c", SLOW, str(path), str(path) + ".log", str(executor), str(n)],
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(*processes):
    errors = [process.communicate()[1] for process in processes]
    assert all(process.returncode == 0 for process in processes), errors


def commits(path):
    return len(list(Path(path).glob("commits/*.json")))


@pytest.mark.parametrize("executor", [None, 2])
def test_a_run_killed_again_and_again_ends_as_if_it_never_was(tmp_path, executor):
    path, rng = tmp_path / "s.zarr", random.Random(executor)
    kills = 0
    while kills < 5:
        process, before = start(path, 1200, executor), commits(path)
        while commits(path) == before and process.poll() is None:
            time.sleep(0.005)
        time.sleep(rng.random() * 0.2)
        kills += process.poll() is None
        process.kill()
        process.communicate()
        assert before < commits(path) < 120, "a kill came too late to test anything"
    finish(start(path, 1200, executor))
    expected = eande.simulate(noisy, BOX, 1200, block_size=10, progress=False)
    assert_same(eande.Simulations.open(path), expected)
    assert eande.Store(path).check() == {}
    # No more than what was in flight at each kill has been done twice.
    in_flight = 1 if executor is None else executor
    assert 120 <= len(Path(str(path) + ".log").read_text()) <= 120 + kills * in_flight


def test_two_processes_fill_one_store_together(tmp_path):
    path = tmp_path / "s.zarr"
    finish(start(path, 600), start(path, 600))
    assert_same(
        eande.Simulations.open(path), eande.simulate(noisy, BOX, 600, block_size=10, progress=False)
    )
    assert len(Path(str(path) + ".log").read_text()) == 60


def test_ctrl_c_finishes_the_blocks_in_flight_and_says_how_to_go_on(tmp_path):
    path = tmp_path / "s.zarr"
    process = start(path, 2000)
    while commits(path) < 3:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate()
    assert process.returncode != 0
    assert (
        f"simulations are in {path}; the same call goes on from there" in message.splitlines()[-1]
    )
    assert len(Path(str(path) + ".log").read_text()) == commits(path)


RUNS_A_PROGRAM = """
import subprocess, sys, eande
def program(phi, rng):
    subprocess.run(["sleep", "0.05"], check=True)
    return phi
eande.simulate(eande.each(program), eande.BoxPrior([-1, -1], [1, 1]), 200, store=sys.argv[1], block_size=4, progress=False)
"""


def test_ctrl_c_in_a_terminal_makes_no_failures(tmp_path):
    """It reaches the programs that a simulator runs, too; what they then fail to do is not their parameters' fault."""
    path = tmp_path / "s.zarr"
    process = subprocess.Popen(
        [sys.executable, "-c", RUNS_A_PROGRAM, str(path)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while commits(path) < 2:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, message = process.communicate()
    assert "the same call goes on from there" in message.splitlines()[-1]
    assert commits(path) >= 2
    assert len(eande.Simulations.open(path).failures) == 0


def test_a_worker_of_a_dask_cluster_may_be_killed(tmp_path):
    distributed = pytest.importorskip("distributed")
    path = tmp_path / "s.zarr"

    def slow(phi, rng):
        time.sleep(0.05)
        return noisy(phi, rng)

    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        killed = []

        def kill_twice():
            for moment in (8, 30):
                while commits(path) < moment:
                    time.sleep(0.01)
                worker = random.Random(moment).choice(list(cluster.workers.values()))
                killed.append(worker.pid)
                os.kill(worker.pid, signal.SIGKILL)

        killer = threading.Thread(target=kill_twice)
        killer.start()
        stored = eande.simulate(
            slow, BOX, 800, store=path, block_size=10, executor=client, progress=False
        )
        killer.join()
    assert len(set(killed)) == 2
    assert_same(stored, eande.simulate(noisy, BOX, 800, block_size=10, progress=False))
    assert eande.Store(path).check() == {}


def flip(file, where):
    content = bytearray(file.read_bytes())
    content[where % len(content)] ^= 1
    file.write_bytes(content)


DAMAGE = {
    "bit of y": lambda path: flip(path / "y/c/1/0", 17),
    "bit of phi": lambda path: flip(path / "phi/c/1/0", 5),
    "bit of a record": lambda path: flip(path / "commits/00000001.json", 40),
    "y cut short": lambda path: os.truncate(path / "y/c/1/0", 50),
    "y empty": lambda path: os.truncate(path / "y/c/1/0", 0),
    "y missing": lambda path: (path / "y/c/1/0").unlink(),
    "phi missing": lambda path: (path / "phi/c/1/0").unlink(),
    "y of another block": lambda path: shutil.copy(path / "y/c/2/0", path / "y/c/1/0"),
    "phi of another block": lambda path: shutil.copy(path / "phi/c/2/0", path / "phi/c/1/0"),
    "record of another block": lambda path: shutil.copy(
        path / "commits/00000002.json", path / "commits/00000001.json"
    ),
    "record emptied": lambda path: os.truncate(path / "commits/00000001.json", 0),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_found_named_and_repaired_on_request(tmp_path, expected, damage):
    path = tmp_path / "s.zarr"
    simulate(45, path)
    damage(path)
    assert list(eande.Store(path).check()) == [1]
    with pytest.raises(
        eande.InputError, match=r"got (block 1 damaged|a damaged one).*redo='damaged'"
    ):
        eande.Simulations.open(path).y[:]
    assert_same(simulate(45, path, redo="damaged"), expected)
    assert eande.Store(path).check() == {}


def test_damage_is_found_by_reading_a_window_and_not_looked_for_if_not_wanted(tmp_path):
    path = tmp_path / "s.zarr"
    simulate(45, path)
    flip(path / "y/c/1/0", 17)
    assert torch.isfinite(eande.Simulations.open(path).y[torch.arange(10)]).all()  # another block
    with pytest.raises(eande.InputError, match="block 1 damaged"):
        _ = eande.Simulations.open(path).y[12]
    assert torch.isfinite(eande.Simulations.open(path, verify=False).y[:]).all()


def other_noise(phi, rng):
    return noisy(phi, rng)


def scaled(scale):
    def simulator(phi, rng):
        return scale * noisy(phi, rng)

    return simulator


def same_sampler(n, seed):
    return np.random.default_rng(seed).uniform(-1, 1, (n, 2))


WRONG = {
    "simulator": (lambda path: eande.simulate(other_noise, BOX, 45, store=path), "a store with simulator.name 'other_noise', got one with 'noisy'"),
    "prior": (lambda path: eande.simulate(noisy, eande.BoxPrior([-2, -1], [1, 1]), 45, store=path), r"a store with prior.low \[-2.0, -1.0\], got one with \[-1.0, -1.0\]; use another folder"),
    "seed": (lambda path: simulate(45, path, seed=1), "expected a store with seed 1, got one with 0"),
    "design": (lambda path: simulate(45, path, design="even"), "expected a store with design 'even', got one with 'random'"),
    "block size": (lambda path: simulate(45, path, block_size=9), "expected a store with block_size 9, got one with 10"),
    "fewer": (lambda path: simulate(40, path), r"n: expected at least 45, what .* is made for, got 40; Simulations.open\(…\)\[:40\]"),
    "redo": (lambda path: simulate(45, path, redo="all"), "redo: expected one of 'damaged', 'failed', got 'all'"),
    "prior without a seed": (
        lambda path: eande.simulate(noisy, eande.SamplerPrior(lambda n, seed: np.random.default_rng().uniform(-1, 1, (n, 2))), 45, store=path),
        "prior: expected the same draws for the same seed, got others",
    ),
    "prior by draws": (
        lambda path: eande.simulate(noisy, eande.SamplerPrior(same_sampler), 45, store=path), "expected a store with prior.kind 'sampler', got one with 'box'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_store_of_other_simulations_is_refused(tmp_path, name):
    call, message = WRONG[name]
    simulate(45, tmp_path / "s.zarr")
    with pytest.raises(eande.InputError, match=message) as caught:
        call(tmp_path / "s.zarr")
    assert "\n" not in str(caught.value)
    assert_same(
        simulate(45, tmp_path / "s.zarr"),
        eande.simulate(noisy, BOX, 45, block_size=BLOCK, progress=False),
    )


def test_settings_of_a_simulator_count(tmp_path):
    path = tmp_path / "s.zarr"
    eande.simulate(scaled(2.0), BOX, 20, store=path, progress=False)
    eande.simulate(scaled(2.0), BOX, 20, store=path, progress=False)
    with pytest.raises(eande.InputError, match=r"simulator\.captured\.\w+ 3.0, got one with 2.0;"):
        eande.simulate(scaled(3.0), BOX, 20, store=path, progress=False)
    with pytest.raises(eande.InputError, match="expected a store with simulator"):
        eande.simulate(lambda phi, rng: phi, BOX, 20, store=path, progress=False)
    eande.simulate(lambda phi, rng: phi, BOX, 20, store=tmp_path / "t.zarr", progress=False)
    with pytest.raises(eande.InputError, match="expected a store with simulator"):
        eande.simulate(lambda phi, rng: 2 * phi, BOX, 20, store=tmp_path / "t.zarr", progress=False)


class Model:
    """A simulator that is an object, with settings and a state."""

    def __init__(self, scale):
        self.scale, self.calls = scale, 0

    def run(self, phi, rng):
        self.calls += 1
        return self.scale * noisy(phi, rng)

    __call__ = run


def by_configuration(scale):
    configuration = {"scale": scale}
    return lambda phi, rng: configuration["scale"] * noisy(phi, rng)


@pytest.mark.parametrize(
    "make",
    [Model, lambda scale: Model(scale).run, by_configuration, scaled],
    ids=["object", "method", "dictionary", "number"],
)
def test_settings_are_found_wherever_they_are_and_states_are_not(tmp_path, make):
    path, simulator = tmp_path / "s.zarr", make(2.0)
    eande.simulate(simulator, BOX, 20, store=path, progress=False)
    eande.simulate(simulator, BOX, 40, store=path, progress=False)
    eande.simulate(make(2.0), BOX, 60, store=path, progress=False)
    with pytest.raises(
        eande.InputError, match=r"expected a store with simulator\.[\w.]+ 3.0, got one with 2.0;"
    ):
        eande.simulate(make(3.0), BOX, 60, store=path, progress=False)


def test_a_lambda_is_the_same_in_every_process():
    code = (
        "from eande.simulation.store.provenance import describe_simulator; "
        "print(describe_simulator(lambda phi, rng: [x for x in (y for y in phi) if x in {'a', 'b', 'c'}]))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(3)
    }
    assert len(seen) == 1


SCALE = 1.0


def scaled_rows(phi, rng):
    return np.stack([SCALE * row for row in phi])


def test_a_constant_inside_a_comprehension_is_a_setting(tmp_path, monkeypatch):
    path = tmp_path / "s.zarr"
    eande.simulate(scaled_rows, BOX, 20, store=path, progress=False)
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 5.0)
    with pytest.raises(
        eande.InputError, match=r"simulator\.globals\.SCALE 5\.0, got one with 1\.0"
    ):
        eande.simulate(scaled_rows, BOX, 40, store=path, progress=False)


def test_tasks_with_other_weights_are_other_simulators():
    assert describe_simulator(VonMisesFisher(2, seed=0)) != describe_simulator(
        VonMisesFisher(2, seed=1)
    )
    assert describe_simulator(VonMisesFisher(2, seed=1)) == describe_simulator(
        VonMisesFisher(2, seed=1)
    )


def test_trying_all_of_many_failed_blocks_again_needs_few_file_handles(tmp_path):
    """As many blocks as a process may open files."""
    code = f"""
import resource, numpy as np, eande, warnings
warnings.simplefilter("ignore")
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
def broken(phi, rng):
    raise RuntimeError("broken")
def mended(phi, rng):
    return phi
box, path = eande.BoxPrior([0], [1]), {str(tmp_path / "s.zarr")!r}
mended.__qualname__ = "broken"
try:
    eande.simulate(broken, box, 200, store=path, block_size=1, failure_limit=1.0, progress=False)
except (eande.InputError, eande.SimulationError) as error:
    print(error)
print(len(eande.simulate(mended, box, 200, store=path, block_size=1, redo="failed", progress=False)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["200"], done.stderr[-2_000:]


def test_a_reader_notices_that_the_store_was_simulated_again(tmp_path):
    """Rows that failed take no room in a shard: when they succeed later, all others move."""
    switch = tmp_path / "broken"
    switch.touch()

    def moody(phi, rng):
        if switch.exists() and phi[0] > 0:
            raise RuntimeError("moody")
        return np.full(20_000, phi[0])

    path = tmp_path / "s.zarr"
    with pytest.warns(eande.EandeWarning, match="moody"):
        before = eande.simulate(
            eande.each(moody), BOX, 10, store=path, failure_limit=0.9, progress=False
        )
    unverified = eande.Simulations.open(path, verify=False)
    assert torch.equal(
        before.y[:, 0] if isinstance(before.y, torch.Tensor) else before.y[:][:, 0],
        before.phi[:, 0],
    )
    assert len(unverified.y[:]) == len(before)
    switch.unlink()
    eande.simulate(eande.each(moody), BOX, 10, store=path, redo="failed", progress=False)
    for reader in (before, unverified):
        with pytest.raises(eande.InputError, match="got another file: open the store again"):
            _ = reader.y[:]


def test_a_wrong_argument_leaves_a_store_as_it_is(tmp_path):
    path = tmp_path / "s.zarr"
    simulate(20, path)
    for wrong in ({"redo": "faild"}, {"executor": "dask"}, {"timeout": -1}):
        with pytest.raises(eande.InputError):
            simulate(10**6, path, **wrong)
    assert len(simulate(np.int64(20), path, block_size=np.int64(BLOCK))) == 20


def test_foreign_files_in_a_store_do_no_harm(tmp_path, expected):
    path = tmp_path / "s.zarr"
    simulate(20, path)
    (path / ".DS_Store").touch()
    (path / "commits" / "._00000000.json").write_text("x")
    assert_same(simulate(45, path), expected)


def test_a_part_of_one_row_is_a_part(tmp_path):
    stored = simulate(20, tmp_path / "s.zarr")
    large, small = stored.split(0.05, seed=0)
    assert small.y[:].shape == (1, 3)
    assert len(large.y[:]) == 19


@pytest.mark.parametrize("path", ["s3://bucket/x", 5, "nul\0byte"])
def test_what_is_no_name_of_a_folder(path):
    for call in (lambda: simulate(5, path), lambda: eande.Simulations.open(path)):
        with pytest.raises(eande.InputError, match="store: expected the name of a folder, got"):
            call()


def test_a_home_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    simulate(5, "~/s.zarr")
    assert (tmp_path / "s.zarr" / "zarr.json").exists()


def test_nothing_is_deleted_that_is_not_ours(tmp_path):
    for name in ("phi", "y"):
        (tmp_path / "mine" / name).mkdir(parents=True)
        (tmp_path / "mine" / name / "run1.npy").write_text("precious")
    with pytest.raises(eande.InputError, match="expected a store or an empty folder"):
        simulate(20, tmp_path / "mine")
    assert len(list((tmp_path / "mine").rglob("run1.npy"))) == 2


def test_a_store_that_lost_the_description_of_its_data_keeps_the_data(tmp_path):
    simulate(40, tmp_path / "s")
    (tmp_path / "s" / "y" / "zarr.json").rename(tmp_path / "kept")
    pieces = sorted((tmp_path / "s" / "y").rglob("*"))
    with pytest.raises(
        eande.InputError,
        match=r"expected y/zarr.json beside the blocks that are complete, got none",
    ):
        simulate(80, tmp_path / "s")
    assert sorted((tmp_path / "s" / "y").rglob("*")) == pieces
    (tmp_path / "kept").rename(tmp_path / "s" / "y" / "zarr.json")
    assert len(simulate(80, tmp_path / "s")) == 80


class Counting:
    def __init__(self):
        self.calls = 0

    def __call__(self, phi, rng):
        self.calls += 1
        return phi + self.offset

    @functools.cached_property
    def offset(self):
        return 1.0


class Inheriting(Counting):
    pass


def test_what_an_inherited_method_or_a_cache_changes_is_no_setting(tmp_path):
    simulator = Inheriting()
    eande.simulate(simulator, BOX, 20, store=tmp_path / "s", progress=False)
    assert len(eande.simulate(simulator, BOX, 40, store=tmp_path / "s", progress=False)) == 40


def test_a_setting_may_be_nan(tmp_path):
    def filled(phi, rng, fill=float("nan")):
        return phi

    for n in (20, 40):
        assert len(eande.simulate(filled, BOX, n, store=tmp_path / "s", progress=False)) == n


def test_a_store_that_lost_its_description_is_left_alone(tmp_path, expected):
    path = tmp_path / "s.zarr"
    simulate(45, path)
    description = (path / "zarr.json").read_text()
    (path / "zarr.json").unlink()
    with pytest.raises(eande.InputError, match=r"or without its zarr.json"):
        simulate(45, path)
    (path / "zarr.json").write_text(description)
    assert_same(simulate(45, path), expected)
    (path / "y" / "zarr.json").unlink()
    with pytest.raises(
        eande.InputError, match=r"expected whole array metadata, got none at .*y/zarr.json"
    ):
        eande.Simulations.open(path)


def test_copies_of_records_are_no_records(tmp_path, expected):
    path = tmp_path / "s.zarr"
    simulate(45, path)
    shutil.copy(path / "commits/00000000.json", path / "commits/00000000 (copy).json")
    assert_same(simulate(45, path), expected)


def test_a_network_is_compared_by_its_weights(tmp_path):
    def through(network):
        return lambda phi, rng: network(torch.as_tensor(phi))

    first, second = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)
    eande.simulate(through(first), BOX, 20, store=tmp_path / "s.zarr", progress=False)
    eande.simulate(through(first), BOX, 40, store=tmp_path / "s.zarr", progress=False)
    with pytest.raises(eande.InputError, match="expected a store with simulator"):
        eande.simulate(through(second), BOX, 60, store=tmp_path / "s.zarr", progress=False)


def test_a_complete_store_needs_no_writing(tmp_path, expected, monkeypatch):
    simulate(45, tmp_path / "s.zarr")

    def refuse(*_args, **_kwargs):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr(store_module, "FileLock", refuse)
    assert_same(simulate(45, tmp_path / "s.zarr"), expected)


def test_a_prior_known_by_draws_is_compared_by_draws(tmp_path):
    prior = eande.SamplerPrior(same_sampler)
    eande.simulate(noisy, prior, 20, store=tmp_path / "s.zarr", progress=False)
    eande.simulate(noisy, prior, 30, store=tmp_path / "s.zarr", progress=False)
    with pytest.raises(eande.InputError, match="expected a store with prior"):
        eande.simulate(
            noisy,
            eande.SamplerPrior(lambda n, seed: same_sampler(n, seed + 1)),
            30,
            store=tmp_path / "s.zarr",
            progress=False,
        )


def test_folders_that_are_no_store(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("x")
    with pytest.raises(
        eande.InputError, match="store: expected the name of a folder, got the file"
    ):
        simulate(5, tmp_path / "file")
    with pytest.raises(
        eande.InputError,
        match=r"store: expected a store or an empty folder, got .*folder with other things in it",
    ):
        simulate(5, tmp_path / "folder")
    for name, got in (
        ("file", "a file"),
        ("folder", "a folder of something else"),
        ("nothing", "nothing there"),
    ):
        with pytest.raises(eande.InputError, match=f"expected an eande store, got {got}"):
            eande.Simulations.open(tmp_path / name)
    zarr.create_group(tmp_path / "other.zarr")
    with pytest.raises(eande.InputError, match=r"expected an eande store, got a zarr.json without"):
        eande.Simulations.open(tmp_path / "other.zarr")


def test_a_store_of_a_newer_format_is_refused(tmp_path):
    path = tmp_path / "s.zarr"
    simulate(20, path)
    metadata = json.loads((path / "zarr.json").read_text())
    metadata["attributes"]["eande"]["format"] = 99
    (path / "zarr.json").write_text(json.dumps(metadata))
    for call in (lambda: eande.Simulations.open(path), lambda: simulate(20, path)):
        with pytest.raises(
            eande.InputError,
            match="expected a store of format 1 or older, got format 99: it was written by a newer version",
        ):
            call()
    (path / "zarr.json").write_text("{")
    with pytest.raises(eande.InputError, match=r"expected an eande store, got a zarr.json"):
        eande.Simulations.open(path)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EROFS, eande.InputError),
        (errno.EACCES, eande.InputError),
        (errno.ENOSPC, eande.SimulationError),
    ],
)
def test_a_disk_that_cannot_be_written_is_said_in_a_line(
    tmp_path, expected, monkeypatch, number, kind
):
    path = tmp_path / "s.zarr"
    whole, count = CommitRecord.write, []

    def failing(self, layout):
        count.append(self.block)
        if len(count) == 3:
            raise OSError(number, os.strerror(number))
        whole(self, layout)

    monkeypatch.setattr(CommitRecord, "write", failing)
    with pytest.raises(kind, match=f"{path.name}.*{os.strerror(number)}") as caught:
        simulate(45, path)
    assert "\n" not in str(caught.value)
    assert len(eande.Simulations.open(path)) == 20
    assert_same(simulate(45, path), expected)


class Killed(BaseException):
    """Stands for a process that ends there and then: nothing after it runs, not even the tidying up of the store."""


class StoreMachine(RuleBasedStateMachine):
    """Whatever is done to a store, in whatever order: what it gives is right, and a call to simulate makes it whole."""

    @initialize()
    def begin(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "s.zarr"
        self.extents, self.broken = [], set()

    def teardown(self):
        self.folder.cleanup()

    def truth(self):
        """Return φ and y of all blocks planned, by simulating each extent in memory with the stream of its block."""
        phi, y = [], []
        for block, size in enumerate(block_sizes(self.extents, 4)):
            phi.append(BOX.sample(size, seed=derive_seed(0, "phi", block)))
            y.append(
                torch.from_numpy(
                    noisy(
                        phi[-1].numpy(), np.random.default_rng(derive_seed(0, "simulator", block))
                    ).astype(np.float32)
                )
            )
        return torch.cat(phi), torch.cat(y)

    def go(self, n, **options):
        stored = eande.simulate(
            noisy, BOX, n, store=self.path, block_size=4, progress=False, **options
        )
        if n not in self.extents:
            self.extents.append(n)
        return stored

    @rule(more=st.integers(1, 11))
    def extend_or_resume(self, more):
        if self.broken:
            return
        self.go((self.extents[-1] if self.extents else 0) + more)
        self.whole()

    @rule(
        more=st.integers(1, 11),
        steps=st.integers(0, 12),
        where=st.sampled_from(["write", "create", "sync", "replace"]),
    )
    def die(self, more, steps, where):
        """End in the middle of a call: at the n-th write of an array, creation, sync or renaming."""
        if self.broken:
            return
        n = (self.extents[-1] if self.extents else 0) + more
        left = [steps]

        def then_die(whole):
            def wrapped(*args, **kwargs):
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
                return whole(*args, **kwargs)

            return wrapped

        targets = {
            "write": (zarr.Array, "__setitem__"),
            "create": (store_module.zarr, "create_array"),
            "sync": (store_module, "sync"),
            "replace": (Path, "replace"),
        }
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(*targets[where], then_die(getattr(*targets[where])))
            with contextlib.suppress(Killed):
                self.go(n)
        if (self.path / "zarr.json").exists():
            self.extents = eande.Store(self.path).about["extents"]

    @precondition(lambda self: self.extents)
    @rule(data=st.data())
    def damage(self, data):
        files = sorted(
            file
            for file in self.path.rglob("*")
            if file.is_file()
            and ("c" in file.parts[len(self.path.parts) :] or "commits" in file.parts)
        )
        files = [file for file in files if file.stat().st_size]
        if not files:
            return
        file = data.draw(st.sampled_from(files))
        block = (
            int(file.stem)
            if file.parent.name == "commits"
            else int(file.relative_to(self.path).parts[2])
        )
        if not (self.path / "commits" / f"{block:08d}.json").exists():
            return  # not there anyway
        kind = data.draw(st.sampled_from(["flip", "cut"]))
        if kind == "flip":
            flip(file, data.draw(st.integers(0, file.stat().st_size - 1)))
        else:
            os.truncate(file, data.draw(st.integers(0, file.stat().st_size - 1)))
        self.broken.add(block)

    @precondition(lambda self: self.extents)
    @rule()
    def repair(self):
        assert set(eande.Store(self.path).check()) == self.broken
        self.go(self.extents[-1], redo="damaged")
        self.broken = set()
        self.whole()

    def whole(self):
        phi, y = self.truth()
        stored = eande.Simulations.open(self.path)
        assert torch.equal(stored.phi, phi)
        assert torch.equal(stored.y[:], y)

    @invariant()
    def nothing_wrong_is_ever_given(self):
        if not getattr(self, "extents", []):
            return
        phi, y = self.truth()
        try:
            stored = eande.Simulations.open(self.path)
            data = stored.y[:]
        except eande.InputError as error:
            if not self.broken and "got none" not in str(error):
                raise
            return
        assert len(stored.phi.unique(dim=0)) == len(stored)
        place = [int((phi == row).all(1).nonzero()[0, 0]) for row in stored.phi]
        assert torch.equal(data, y[place])


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=25,
    stateful_step_count=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
