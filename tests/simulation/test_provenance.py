"""A store of other simulations is refused: what counts as a setting of a simulator."""

import dataclasses
import functools
import subprocess
import sys

import numpy as np
import pytest
import torch

import eande
from eande.simulation.store.metadata import write_description
from eande.simulation.store.provenance import describe_simulator
from eande.simulators.von_mises_fisher import VonMisesFisher
from helpers.stores import BLOCK, BOX, assert_same, noisy, simulate


def other_noise(phi, rng):
    return noisy(phi, rng)


def scaled(scale):
    def simulator(phi, rng):
        return scale * noisy(phi, rng)

    return simulator


def same_sampler(n, seed):
    return np.random.default_rng(seed).uniform(-1, 1, (n, 2))


WRONG = {
    "simulator": (
        lambda path: eande.simulate(other_noise, BOX, 45, store=path),
        "a store with simulator.name 'other_noise', got one with 'noisy'",
    ),
    "prior": (
        lambda path: eande.simulate(noisy, eande.BoxPrior([-2, -1], [1, 1]), 45, store=path),
        r"a store with prior.low \[-2.0, -1.0\], got one with \[-1.0, -1.0\]",
    ),
    "seed": (
        lambda path: simulate(45, path, seed=1),
        "expected a store with seed 1, got one with 0",
    ),
    "design": (
        lambda path: simulate(45, path, design="even"),
        "expected a store with design 'even', got one with 'random'",
    ),
    "block size": (
        lambda path: simulate(45, path, block_size=9),
        "expected a store with block_size 9, got one with 10",
    ),
    "fewer": (
        lambda path: simulate(40, path),
        r"n: expected at least 45, what .* is made for, got 40; Simulations.open\(…\)\[:40\]",
    ),
    "redo": (
        lambda path: simulate(45, path, redo="all"),
        "redo: expected one of 'damaged', 'failed', got 'all'",
    ),
    "prior without a seed": (
        lambda path: eande.simulate(
            noisy,
            eande.SamplerPrior(lambda n, seed: np.random.default_rng().uniform(-1, 1, (n, 2))),
            45,
            store=path,
        ),
        "prior: expected the same draws for the same seed, got others",
    ),
    "prior by draws": (
        lambda path: eande.simulate(noisy, eande.SamplerPrior(same_sampler), 45, store=path),
        "expected a store with prior.kind 'sampler', got one with 'box'",
    ),
}


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
        self.scale = scale
        self.calls = 0

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
        "print(describe_simulator(lambda phi, rng: [x for x in (y for y in phi) if x in "
        "{'a', 'b', 'c'}]))"
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


def test_a_wrong_argument_leaves_a_store_as_it_is(tmp_path):
    path = tmp_path / "s.zarr"
    simulate(20, path)
    for wrong in ({"redo": "faild"}, {"executor": "dask"}, {"timeout": -1}):
        with pytest.raises(eande.InputError):
            simulate(10**6, path, **wrong)
    assert len(simulate(np.int64(20), path, block_size=np.int64(BLOCK))) == 20


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


def test_a_network_is_compared_by_its_weights(tmp_path):
    def through(network):
        return lambda phi, rng: network(torch.as_tensor(phi))

    first = torch.nn.Linear(2, 3)
    second = torch.nn.Linear(2, 3)
    eande.simulate(through(first), BOX, 20, store=tmp_path / "s.zarr", progress=False)
    eande.simulate(through(first), BOX, 40, store=tmp_path / "s.zarr", progress=False)
    with pytest.raises(eande.InputError, match="expected a store with simulator"):
        eande.simulate(through(second), BOX, 60, store=tmp_path / "s.zarr", progress=False)


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


def applied(function):
    def simulator(phi, rng):
        return function(phi)

    return simulator


# Functions of one name.
WAYS = (lambda phi: +phi, lambda phi: -phi)


def plus(phi):
    return +phi


def minus(phi):
    return -phi


def step(phi):
    return WAY(phi)


WAY = plus


def stepping(phi, rng):
    return step(phi)


class Applying:
    def __init__(self, function):
        self.function = function

    def __call__(self, phi, rng):
        return self.function(phi)


def with_default(function):
    def simulator(phi, rng, way=function):
        return way(phi)

    return simulator


def with_keyword(function):
    return functools.partial(lambda phi, rng, way: way(phi), way=function)


def in_a_table(function):
    table = {"way": function}
    return lambda phi, rng: table["way"](phi)


def nested(function):
    return applied(applied_to_one(function))


def applied_to_one(function):
    return lambda phi: 1 * function(phi)


USERS = {
    "captured": applied,
    "an attribute": Applying,
    "a default": with_default,
    "an argument": with_keyword,
    "in a dictionary": in_a_table,
    "two functions deep": nested,
}


@pytest.mark.parametrize("make", USERS.values(), ids=USERS)
def test_another_function_that_is_used_makes_another_simulator(tmp_path, make):
    path = tmp_path / "s.zarr"
    eande.simulate(make(WAYS[0]), BOX, 20, store=path, progress=False)
    assert len(eande.simulate(make(WAYS[0]), BOX, 40, store=path, progress=False)) == 40
    with pytest.raises(eande.InputError, match=r"expected a store with simulator\.functions\."):
        eande.simulate(make(WAYS[1]), BOX, 60, store=path, progress=False)


def test_another_function_among_the_globals_of_a_function_counts(tmp_path, monkeypatch):
    path = tmp_path / "s.zarr"
    eande.simulate(stepping, BOX, 20, store=path, progress=False)
    monkeypatch.setattr(sys.modules[__name__], "WAY", minus)
    with pytest.raises(eande.InputError, match=r"simulator\.functions\.step"):
        eande.simulate(stepping, BOX, 40, store=path, progress=False)


def made(source):
    names = {"np": np}
    exec(compile(source, "mine.py", "exec"), names)
    return names


FIRST = """
def helper(phi):
    if phi is None:
        return None
    return 2 * phi + np.sum(phi)

def simulator(phi, rng):
    return helper(phi)
"""

RELAID = '''

# Comments,
unrelated = 3


def other(x):
    return x


def helper( phi ):
    """Words."""
    if (
        phi is None
    ):
        return None
    return (
        2 * phi  # more of them
        + np.sum(phi)
    )


def simulator(phi, rng):
    return helper(phi)
'''


def test_how_a_function_is_written_does_not_count_and_what_it_does_counts():
    first = describe_simulator(made(FIRST)["simulator"])
    assert list(first["functions"]) == ["helper"]
    assert describe_simulator(made(RELAID)["simulator"]) == first
    changed = made(FIRST.replace("2 * phi", "3 * phi"))
    assert describe_simulator(changed["simulator"]) != first


RECURSIVE = """
def even(n):
    return n == 0 or odd(n - 1)

def odd(n):
    return n != 0 and even(n - 1)

def simulator(phi, rng):
    return phi if even(2) else simulator(phi, rng)

cache = {}

def remembered(x):
    if x not in cache:
        cache[x] = x
    return cache[x]

def remembering(phi, rng):
    return remembered(float(phi[0, 0])) + 0 * phi
"""


def test_functions_that_use_each_other_are_described():
    described = describe_simulator(made(RECURSIVE)["simulator"])
    assert set(described["functions"]) == {"even", "simulator"}
    assert described == describe_simulator(made(RECURSIVE)["simulator"])


def test_what_a_function_remembers_is_no_setting():
    simulator = made(RECURSIVE)["remembering"]
    before = describe_simulator(simulator)
    simulator(np.ones((2, 2)), np.random.default_rng(0))
    assert describe_simulator(simulator) == before


def test_functions_of_libraries_do_not_count():
    def simulator(phi, rng):
        return functools.reduce(np.add, [phi, torch.nn.functional.relu(torch.as_tensor(phi))])

    assert describe_simulator(simulator)["functions"] == {}
    relu = torch.nn.functional.relu
    assert describe_simulator(lambda phi, rng: relu(phi))["functions"] == {}
    assert describe_simulator(applied(eande.each))["functions"] == {}


def test_a_function_sent_to_another_process_is_described_alike():
    code = f"""
import sys, cloudpickle
from eande.simulation.store.provenance import describe_simulator
names = {{}}
exec(compile({FIRST!r}, "mine.py", "exec"), names)
simulator = names["simulator"]
there = cloudpickle.loads(cloudpickle.dumps(simulator))
assert describe_simulator(there) == describe_simulator(simulator)
print(describe_simulator(simulator))
"""
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    }
    assert len(seen) == 1


def test_stores_that_say_nothing_of_functions_are_extended(tmp_path):
    path = tmp_path / "s.zarr"
    eande.simulate(applied(plus), BOX, 20, store=path, progress=False)
    about = eande.Store(path).about
    older = {key: value for key, value in about.simulator.items() if key != "functions"}
    write_description(path, dataclasses.replace(about, simulator=older))
    assert len(eande.simulate(applied(plus), BOX, 40, store=path, progress=False)) == 40


def test_another_python_compiles_the_same_function_otherwise(tmp_path):
    path = tmp_path / "s.zarr"
    eande.simulate(applied(plus), BOX, 20, store=path, progress=False)
    about = eande.Store(path).about
    other = {**about.simulator, "functions": {"function": "0123456789abcdef"}}
    for python, extends in (("3.0.1", True), (about.versions["python"], False)):
        changed = dataclasses.replace(
            about, simulator=other, versions={**about.versions, "python": python}
        )
        write_description(path, changed)
        if extends:
            assert len(eande.simulate(applied(plus), BOX, 20, store=path, progress=False)) == 20
        else:
            with pytest.raises(eande.InputError, match="expected a store with simulator"):
                eande.simulate(applied(plus), BOX, 20, store=path, progress=False)


def test_a_name_that_is_bound_later_is_no_setting():
    def simulator(phi, rng):
        return phi + later

    assert "captured" not in describe_simulator(simulator)
    later = 1.0
    assert describe_simulator(simulator)["captured"] == {"later": 1.0}


def nested(function):
    tools = {"a": {"b": function}}

    def simulator(phi, rng):
        return tools["a"]["b"](phi)

    return simulator


def called(sign):
    class Tool:
        def __call__(self, phi):
            return phi

    class Other:
        def __call__(self, phi):
            return -phi

    Other.__name__ = Tool.__name__
    Other.__qualname__ = Tool.__qualname__
    tool = Tool() if sign > 0 else Other()

    def simulator(phi, rng):
        return tool(phi)

    return simulator


def test_functions_deep_in_dictionaries_and_callable_objects_count(tmp_path):
    for name, one, other in (
        ("nested", nested(lambda phi: phi), nested(lambda phi: -phi)),
        ("called", called(1), called(-1)),
    ):
        store = tmp_path / name
        eande.simulate(one, BOX, 20, store=store, progress=False)
        eande.simulate(one, BOX, 30, store=store, progress=False)
        with pytest.raises(eande.InputError, match=r"expected a store with simulator\.functions"):
            eande.simulate(other, BOX, 40, store=store, progress=False)
