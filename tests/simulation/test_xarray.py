"""Simulations in xarray datasets, in memory and lazy."""

import re

import numpy as np
import pytest
import torch
import xarray

from eande.foundations.checks import InputError
from eande.simulation.read.from_xarray import XarraySource
from eande.simulation.read.simulations import Simulations
from helpers.written_files import PHI, PHI32, Y32, N, Y, check_reading


def dataset():
    return xarray.Dataset(
        {
            "phi": (("p", "run"), PHI.T),
            "a": ("run", PHI[:, 0]),
            "b": ("run", PHI[:, 1]),
            "y": (("time", "run", "x"), Y.swapaxes(0, 1)),
        }
    )


@pytest.fixture(params=["file", "dask"])
def lazy(request, tmp_path):
    dataset().to_netcdf(tmp_path / "all.nc", engine="h5netcdf")
    opened = xarray.open_dataset(
        tmp_path / "all.nc", chunks={"run": 1, "time": 5} if request.param == "dask" else None
    )
    yield opened
    opened.close()


@pytest.mark.parametrize("phi", ["phi", ["a", "b"]])
def test_a_dataset_in_memory_is_taken_at_once(phi):
    simulations = Simulations.from_xarray(dataset(), phi=phi, y="y", dimension="run")
    assert torch.equal(simulations.phi, PHI32)
    assert isinstance(simulations.y, torch.Tensor)
    assert torch.equal(simulations.y, Y32)


@pytest.mark.parametrize("kind", ["read-only", "backwards"])
def test_arrays_that_torch_cannot_share_are_copied(kind):
    y = Y.astype(np.float32)
    y.flags.writeable = kind != "read-only"
    y = y[:, ::-1] if kind == "backwards" else y
    data = xarray.Dataset({"phi": (("run", "p"), PHI), "y": (("run", "time", "x"), y)})
    assert torch.equal(
        Simulations.from_xarray(data, phi="phi", y="y", dimension="run").y,
        torch.from_numpy(y.copy()),
    )


def test_a_lazy_dataset_is_read_when_asked(lazy):
    check_reading(Simulations.from_xarray(lazy, phi="phi", y="y", dimension="run"), XarraySource)
    assert torch.equal(
        Simulations.from_xarray(lazy, phi=["b", "a"], y="y", dimension="run").phi, PHI32[:, [1, 0]]
    )
    assert not lazy["y"].variable._in_memory


def test_scalar_data_of_a_dataset_have_one_axis(lazy):
    for one in (lazy, dataset()):
        simulations = Simulations.from_xarray(one, phi="phi", y="a", dimension="run")
        assert simulations.y_shape == (1,)
        assert torch.equal(simulations.y[:], PHI32[:, :1])


def test_of_a_dask_array_only_the_chunks_of_the_window_are_computed():
    array = pytest.importorskip("dask.array")
    computed = []

    def block(block_info=None):
        computed.append(tuple(block_info[None]["chunk-location"]))
        return np.ones(block_info[None]["chunk-shape"])

    y = array.map_blocks(block, chunks=((1,) * N, (5,) * 4), dtype=float, meta=np.ones((0, 0)))
    simulations = Simulations.from_xarray(
        xarray.Dataset({"phi": (("run", "p"), PHI), "y": (("run", "time"), y)}),
        phi="phi",
        y="y",
        dimension="run",
    )
    assert computed == []
    simulations.y.windows(torch.tensor([4]), torch.tensor([6]), 5)
    assert sorted(computed) == [(4, 1), (4, 2)]


def test_replicates_in_a_dataset(lazy):
    same = xarray.Dataset({"phi": (("run", "p"), PHI[[0, 1, 0, 2, 1, 0]])})
    for one in (dataset(), lazy):
        groups = Simulations.from_xarray(
            one.assign(phi=same["phi"]), phi="phi", y="y", dimension="run"
        ).groups.tolist()
        assert [groups.index(group) for group in groups] == [0, 1, 0, 3, 1, 0]


def test_a_fingerprint_changes_with_a_lazy_dataset(lazy):
    def fingerprint(data):
        return Simulations.from_xarray(data, phi="phi", y="y", dimension="run").fingerprint()

    first = fingerprint(lazy)
    assert fingerprint(lazy) == first
    assert fingerprint(lazy.chunk().assign(y=lazy["y"].chunk() + (lazy["run"] == N - 1))) != first


def test_a_fingerprint_looks_at_a_spread_of_long_data():
    first, other = np.zeros((2, 2, 40_000))
    other[1, -1] = 1
    data = [
        xarray.Dataset({"phi": ("run", [0.0, 1.0]), "y": (("run", "time"), y)}).chunk()
        for y in (first, other)
    ]
    one, two = (Simulations.from_xarray(one, phi="phi", y="y", dimension="run").y for one in data)
    assert one.fingerprint() != two.fingerprint()
    assert one.subset([0]).fingerprint() == two.subset([0]).fingerprint()


def test_bad_numbers_of_a_lazy_dataset_are_named_when_they_are_read(lazy):
    bad = lazy.chunk().assign(y=lazy["y"].chunk().where((lazy["run"] != 2) | (lazy["x"] != 1)))
    y = Simulations.from_xarray(bad, phi="phi", y="y", dimension="run").y
    assert torch.equal(y[1], Y32[1])
    with pytest.raises(
        InputError,
        match=r"^y, run 2\[4:9\]: expected finite float32 numbers, got 5 NaN or inf, the "
        r"first at index \(0, 1\)$",
    ):
        y.windows(torch.tensor([2]), torch.tensor([4]), 5)


def from_xarray(change=lambda data: data, **names):
    return lambda: Simulations.from_xarray(
        change(dataset()), **{"phi": "phi", "y": "y", "dimension": "run"} | names
    )


BAD_DATASETS = {
    "no dataset": (
        from_xarray(lambda data: data["y"]),
        "dataset: expected an xarray Dataset, got DataArray",
    ),
    "no dimension": (
        from_xarray(dimension="member"),
        "dimension: expected one of 'p', 'run', 'time', 'x', got 'member'",
    ),
    "no phi": (from_xarray(phi="theta"), "phi: expected one of 'phi', 'a', 'b', 'y', got 'theta'"),
    "one phi of a list": (
        from_xarray(phi=["a", "c"]),
        "phi: expected one of 'phi', 'a', 'b', 'y', got 'c'",
    ),
    "no names": (from_xarray(phi=[]), "phi: expected a name or a list of names, got []"),
    "no y": (from_xarray(y="x"), "y: expected one of 'phi', 'a', 'b', 'y', got 'x'"),
    "phi of three dimensions": (
        from_xarray(phi="y"),
        "phi, 'y': expected dimensions (run, parameters), got (time, run, x)",
    ),
    "phi elsewhere": (
        from_xarray(dimension="time"),
        "phi, 'phi': expected dimensions (time, parameters), got (p, run)",
    ),
    "a vector in the list": (
        from_xarray(phi=["a", "phi"]),
        "phi, 'phi': expected dimensions (run,), got (p, run)",
    ),
    "y elsewhere": (
        from_xarray(phi="phi", y="a", dimension="p"),
        "y: expected a variable with the dimension 'p', got 'a' with (run,)",
    ),
    "no simulations": (
        from_xarray(lambda data: data.isel(run=[])),
        "number of simulations: expected a whole number of at least 1, got 0",
    ),
    "no parameters": (
        from_xarray(lambda data: data.isel(p=[])),
        "number of parameters: expected a whole number of at least 1, got 0",
    ),
    "no times": (
        from_xarray(lambda data: data.isel(time=[])),
        "y, 'y': expected at least one number, got shape (0, 3)",
    ),
    "words": (
        from_xarray(lambda data: data.assign(y=data["a"].astype(str))),
        "y, 'y': expected real numbers, got <U32",
    ),
    "words in phi": (
        from_xarray(lambda data: data.assign(phi=data["a"].astype(str))),
        "phi, 'phi': expected real numbers, got <U32",
    ),
    "NaN in phi": (
        from_xarray(lambda data: data.where(data["a"] != PHI[3, 0])[["phi"]].merge(data[["y"]])),
        "phi: expected finite float32 numbers, got 2 NaN or inf, the first at index (3, 0)",
    ),
    "NaN in y": (
        from_xarray(lambda data: data.assign(y=data["y"].where(data["y"] != Y[3, 4, 2]))),
        "y: expected finite float32 numbers, got 1 NaN or inf, the first at index (3, 4, 2)",
    ),
}


@pytest.mark.parametrize(("call", "message"), BAD_DATASETS.values(), ids=BAD_DATASETS)
def test_bad_datasets(call, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        call()
