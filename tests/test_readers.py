"""Simulations that others wrote: every window is a slice of the whole, nothing else is read, and what is wrong names the file."""

import builtins
import io
import os
import re
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import xarray

from eande.foundations.checks import InputError
from eande.simulation.read.from_files import FileSource
from eande.simulation.read.from_xarray import XarraySource
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.views import RandomWindow, draw_view

RNG = np.random.default_rng(0)
N, T, K = 6, 20, 3
PHI, Y = RNG.normal(size=(N, 2)), RNG.normal(size=(N, T, K))
PHI32, Y32 = torch.as_tensor(PHI, dtype=torch.float32), torch.as_tensor(Y, dtype=torch.float32)


def as_npz(path, phi, y, save=np.savez):
    save(path, phi=phi, a=phi[0], b=phi[1:], y=y)


def as_npz_compressed(path, phi, y):
    as_npz(path, phi, y, np.savez_compressed)


def as_npz_float32(path, phi, y):
    as_npz(path, phi.astype(np.float32), y.astype(np.float32))


def as_npz_fortran(path, phi, y):
    as_npz(path, phi, np.asfortranarray(y))


def as_npz_big_endian(path, phi, y):
    as_npz(path, phi, y.astype(">f8"))


def as_netcdf(path, phi, y, **options):
    variables = {
        "phi": ("parameter", phi),
        "a": phi[0],
        "y": (("time", "x")[: np.ndim(y)], y),
        "time": np.arange(len(y) if np.ndim(y) else T, dtype=float),
    }
    xarray.Dataset(variables, attrs={"b": phi[1], "vector": phi}).to_netcdf(
        path, **({"engine": "h5netcdf"} | options)
    )


def as_classic_netcdf(path, phi, y):
    as_netcdf(path, phi, y, engine="scipy")


WRITERS = {
    "npz": (as_npz, "npz"),
    "npz compressed": (as_npz_compressed, "npz"),
    "npz float32": (as_npz_float32, "npz"),
    "npz Fortran": (as_npz_fortran, "npz"),
    "npz big-endian": (as_npz_big_endian, "npz"),
    "NetCDF": (as_netcdf, "nc"),
    "NetCDF classic": (as_classic_netcdf, "cdf"),
}


@pytest.fixture(params=WRITERS.values(), ids=WRITERS)
def folder(request, tmp_path):
    write, suffix = request.param
    for i in range(N):
        write(tmp_path / f"run-{i}.{suffix}", PHI[i], Y[i])
    return tmp_path


@pytest.fixture
def npz(tmp_path):
    for i in range(N):
        as_npz(tmp_path / f"run-{i}.npz", PHI[i], Y[i])
    return tmp_path


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


def check_reading(simulations, kind):
    assert isinstance(simulations.y, kind)
    assert torch.equal(simulations.phi, PHI32)
    assert simulations.y.shape == (N, T, K)
    assert simulations.y_shape == (T, K)
    assert torch.equal(simulations.y[:], Y32)
    assert torch.equal(simulations.y[4], Y32[4])
    index, starts = torch.tensor([5, 0, 5, 2]), torch.tensor([13, 0, 4, 7])
    expected = torch.stack([Y32[i, s : s + 7] for i, s in zip(index, starts, strict=True)])
    assert torch.equal(simulations.rows(index).windows(starts, 7), expected)
    chosen = simulations[torch.tensor([4, 1])]
    assert torch.equal(chosen.y[:], Y32[[4, 1]])
    assert torch.equal(simulations[2:][[0, 3]].y[1], Y32[5])
    view = RandomWindow(5)
    assert torch.equal(
        draw_view(view, simulations.rows(index), 3),
        draw_view(view, simulations.in_memory().rows(index), 3),
    )


def test_files_read_as_what_was_written(folder):
    check_reading(Simulations.from_files(folder), FileSource)
    check_reading(Simulations.from_files(sorted(folder.iterdir())), FileSource)


def test_parameters_may_be_scalars(folder):
    assert torch.equal(Simulations.from_files(folder, phi=["b", "a"]).phi, PHI32[:, [1, 0]])
    assert torch.equal(Simulations.from_files(folder, phi="a").phi, PHI32[:, :1])


def test_netcdf_parameters_may_be_one_attribute(tmp_path):
    as_netcdf(tmp_path / "run.nc", PHI[0], Y[0])
    assert torch.equal(Simulations.from_files(tmp_path, phi="vector").phi, PHI32[:1])


def test_netcdf_units_of_time_leave_numbers(tmp_path):
    days = xarray.Dataset(
        {
            "phi": ("p", PHI[0], {"units": "days"}),
            "y": ("t", Y[0, :, 0], {"units": "days since 2000-01-01"}),
        }
    )
    days.to_netcdf(tmp_path / "run.nc", engine="h5netcdf")
    simulations = Simulations.from_files(tmp_path)
    assert torch.equal(simulations.phi, PHI32[:1])
    assert torch.equal(simulations.y[0], Y32[0, :, 0])


@pytest.mark.parametrize(
    ("write", "suffix"), [(as_npz, "npz"), (as_npz_compressed, "npz"), (as_netcdf, "nc")]
)
def test_scalar_data_have_one_axis(write, suffix, tmp_path):
    for i in range(N):
        write(tmp_path / f"{i}.{suffix}", PHI[i], Y[i, 0, 0])
    simulations = Simulations.from_files(tmp_path)
    assert simulations.y_shape == (1,)
    assert torch.equal(simulations.y[:], Y32[:, 0, :1])


def test_of_a_folder_only_visible_data_files_count_in_the_order_of_names(npz):
    (npz / "README.txt").write_text("not data")
    (npz / "._run-0.npz").write_text("not data")
    (npz / "folder.npz").mkdir()
    as_netcdf(npz / "run-00.NC", PHI[0] + 1, Y[0])
    names = [path.name for path in Simulations.from_files(npz).y.files]
    assert names == ["run-0.npz", "run-00.NC", *(f"run-{i}.npz" for i in range(1, N))]


def test_a_relative_folder_survives_a_change_of_folder(npz, monkeypatch):
    monkeypatch.chdir(npz.parent)
    simulations = Simulations.from_files(npz.name)
    monkeypatch.chdir("/")
    assert torch.equal(simulations.y[1], Y32[1])


def test_equal_parameters_are_replicates_and_stay_together(tmp_path):
    for i in range(9):
        as_npz(tmp_path / f"{i}.npz", PHI[i % 3], Y[i % N])
    simulations = Simulations.from_files(tmp_path)
    assert len(simulations.groups.unique()) == 3
    assert torch.equal(simulations.groups.reshape(3, 3), simulations.groups[:3].expand(3, 3))
    large, small = simulations.split(0.3, seed=0)
    assert (len(large), len(small)) == (6, 3)
    assert not set(large.groups.tolist()) & set(small.groups.tolist())
    assert torch.equal(
        small.y[:],
        torch.stack([Y32[i % N] for i in range(9) if (simulations.phi[i] == small.phi[0]).all()]),
    )


def count_bytes_read(monkeypatch):
    """Count what files opened from now on give."""
    counted = []

    class Counting(io.FileIO):
        def readinto(self, buffer):
            counted.append(super().readinto(buffer))
            return counted[-1]

        def readall(self):
            data = super().readall()
            counted.append(len(data))
            return data

    def opening(path, mode="rb", *_, **__):
        return io.BufferedReader(Counting(path, "rb"))

    monkeypatch.setattr(Path, "open", opening)
    monkeypatch.setattr(builtins, "open", opening)
    monkeypatch.setattr(io, "open", opening)
    return counted


def test_of_an_uncompressed_npz_only_the_window_is_read(tmp_path, monkeypatch):
    y = RNG.normal(size=(200_000, 4)).astype(np.float32)
    as_npz(tmp_path / "plain.npz", PHI[0], y)
    as_npz_compressed(tmp_path / "small.npz", PHI[0], y)
    plain, small = (
        Simulations.from_files([tmp_path / name]).y for name in ("plain.npz", "small.npz")
    )
    index, starts = torch.tensor([0]), torch.tensor([123_456])
    counted = count_bytes_read(monkeypatch)
    assert torch.equal(plain.windows(index, starts, 1_000)[0], torch.from_numpy(y[123_456:124_456]))
    assert 16_000 <= sum(counted) < 16_000 + 50_000
    counted.clear()
    small.windows(index, starts, 1_000)
    assert sum(counted) > 1_000_000, "the counting would not notice"


def test_opening_reads_headers_only(tmp_path, monkeypatch):
    as_npz(tmp_path / "plain.npz", PHI[0], RNG.normal(size=(200_000, 4)))
    counted = count_bytes_read(monkeypatch)
    Simulations.from_files([tmp_path / "plain.npz"])
    assert 0 < sum(counted) < 50_000


def damage_chunk(path, name, chunk):
    with h5py.File(path) as file:
        place = file[name].id.get_chunk_info(chunk)
    with open(path, "r+b") as file:
        file.seek(place.byte_offset + place.size // 2)
        file.write(b"\x00\xff\x00\xff")


def test_of_netcdf_only_the_window_is_read(tmp_path):
    """Of the data the last chunk is damaged, of the times all, with checksums to tell: windows of other chunks come, the whole does not."""
    options = {
        "encoding": {
            "y": {"chunksizes": (5, K), "fletcher32": True},
            "time": {"chunksizes": (T,), "fletcher32": True},
        }
    }
    as_netcdf(tmp_path / "run.nc", PHI[0], Y[0], **options)
    y = Simulations.from_files(tmp_path).y
    damage_chunk(tmp_path / "run.nc", "y", 3)
    damage_chunk(tmp_path / "run.nc", "time", 0)
    assert torch.equal(y.windows(torch.tensor([0]), torch.tensor([3]), 12)[0], Y32[0, 3:15])
    with pytest.raises(
        InputError, match=r"run\.nc, y: expected data that can be read, got OSError: "
    ):
        y[0]


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


def test_a_fingerprint_changes_with_the_files_and_with_nothing_else(npz):
    simulations = Simulations.from_files(npz)
    before = simulations.fingerprint()
    assert Simulations.from_files(npz).fingerprint() == before
    part = simulations.y.subset(slice(1, None)).fingerprint()
    assert part != simulations.y.fingerprint()
    os.utime(npz / "run-0.npz", ns=(0, 0))
    assert simulations.fingerprint() != before
    assert simulations.y.subset(slice(1, None)).fingerprint() == part


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


def test_reading_needs_xarray_only_where_it_is_used(npz, monkeypatch):
    as_netcdf(npz / "run.nc", PHI[0], Y[0])
    monkeypatch.setitem(sys.modules, "xarray", None)
    assert len(Simulations.from_files(npz.glob("*.npz"))) == N
    hint = r" needs xarray: pip install 'embed-and-emulate\[scale\]'"
    with pytest.raises(ImportError, match="a NetCDF file" + hint):
        Simulations.from_files(npz)
    with pytest.raises(ImportError, match=r"Simulations\.from_xarray" + hint):
        Simulations.from_xarray(None, phi="phi", y="y", dimension="run")


def test_importing_the_reader_does_not_import_xarray():
    code = "import sys, eande.simulation.read.simulations; print([name for name in ('xarray', 'dask', 'h5py', 'pandas') if name in sys.modules])"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


def spoiled(values, index, value):
    values = np.array(values, dtype=np.float64)
    values[index] = value
    return values


# What is in the second of three files, and the message after the file's path.
BAD_MEMBERS = {
    "NaN in phi": (
        {"phi": spoiled(PHI[0], 1, np.nan)},
        ", phi: expected finite float32 numbers, got 1 NaN or inf, the first at index 1",
    ),
    "too large a number": (
        {"phi": [1e300, 0]},
        ", phi: expected finite float32 numbers, got 1 NaN or inf, the first at index 0",
    ),
    "another dimension": (
        {"phi": [1.0, 2.0, 3.0]},
        ", phi: expected 2 parameters as in 0.npz, got 3",
    ),
    "phi no vector": ({"phi": np.zeros((2, 2))}, ", phi: expected a vector, got shape (2, 2)"),
    "phi empty": ({"phi": np.zeros(0)}, ", phi: expected a vector, got shape (0,)"),
    "phi of words": ({"phi": np.array(["a", "b"])}, ", phi: expected real numbers, got <U1"),
    "no phi": ({"theta": [1.0]}, ", phi: expected one of 'theta', 'y', got 'phi'"),
    "no y": ({"phi": PHI[0], "x": [1.0]}, ", y: expected one of 'phi', 'x', got 'y'"),
    "another shape": (
        {"phi": PHI[0], "y": Y[0, 1:]},
        ", y: expected shape (20, 3) as in the first file, got (19, 3)",
    ),
    "empty y": (
        {"phi": PHI[0], "y": Y[0, :, :0]},
        ", y: expected at least one number, got shape (20, 0)",
    ),
    "complex y": ({"phi": PHI[0], "y": Y[0] + 1j}, ", y: expected real numbers, got complex128"),
    "dates": (
        {"phi": PHI[0], "y": Y[0].astype("datetime64[s]")},
        ", y: expected real numbers, got datetime64[s]",
    ),
}


@pytest.mark.parametrize(("content", "message"), BAD_MEMBERS.values(), ids=BAD_MEMBERS)
def test_a_bad_member_is_named(content, message, npz):
    as_npz(npz / "0.npz", PHI[0], Y[0])
    np.savez(npz / "1.npz", **content | ({} if "y" in content or "x" in content else {"y": Y[0]}))
    with pytest.raises(InputError, match=f"^{re.escape(f'{npz}/1.npz{message}')}$"):
        Simulations.from_files(npz)


def test_objects_are_not_unpickled(tmp_path):
    np.savez(tmp_path / "phi.npz", phi=np.array([print], dtype=object), y=Y[0])
    np.savez(tmp_path / "y.npz", phi=PHI[0], y=np.array([print], dtype=object))
    with pytest.raises(
        InputError,
        match=r"phi\.npz: expected data that can be read, got ValueError: Object arrays cannot be loaded",
    ):
        Simulations.from_files([tmp_path / "phi.npz"])
    with pytest.raises(InputError, match=r"y\.npz, y: expected real numbers, got object"):
        Simulations.from_files([tmp_path / "y.npz"])


BAD_NETCDF = {
    "no phi": (
        {"phi": "theta"},
        ", phi: expected one of 'phi', 'a', 'y', 'time', 'b', 'vector', got 'theta'",
    ),
    "no y": ({"y": "b"}, ", y: expected one of 'phi', 'a', 'y', 'time', got 'b'"),
    "no scalar": ({"phi": ["a", "vector"]}, ", vector: expected one number, got shape (2,)"),
    "no vector": ({"phi": "y"}, ", y: expected a vector, got shape (20, 3)"),
}


@pytest.mark.parametrize(("names", "message"), BAD_NETCDF.values(), ids=BAD_NETCDF)
def test_a_bad_name_in_netcdf_is_named(names, message, tmp_path):
    as_netcdf(tmp_path / "run.nc", PHI[0], Y[0])
    with pytest.raises(InputError, match=f"^{re.escape(f'{tmp_path}/run.nc{message}')}$"):
        Simulations.from_files(tmp_path, **names)


@pytest.mark.parametrize("suffix", ["npz", "nc"])
def test_files_that_are_something_else(suffix, tmp_path):
    path = tmp_path / f"run.{suffix}"
    path.write_text("these are words")
    with pytest.raises(
        InputError, match=rf"run\.{suffix}: expected data that can be read, got \w+: .+"
    ):
        Simulations.from_files(tmp_path)


def test_arrays_of_their_own_are_no_simulation(tmp_path):
    with (tmp_path / "run.npz").open("wb") as file:
        np.save(file, Y)
    with pytest.raises(
        InputError, match=r"run\.npz: expected data that can be read, got TypeError"
    ):
        Simulations.from_files(tmp_path)


BAD_FILES = {
    "a file": (
        lambda folder: folder / "run-0.npz",
        "files: expected a folder or a list of files, got {}/run-0.npz",
    ),
    "nothing": (
        lambda folder: f"{folder}/*.npz",
        "files: expected a folder or a list of files, got {}/*.npz",
    ),
    "a number": (lambda folder: 3, "files: expected a folder or a list of files, got 3"),
    "an empty list": (
        lambda folder: [],
        "files: expected at least one of .npz, .nc, .nc4, .cdf, got none in []",
    ),
    "an empty folder": (
        lambda folder: f"{folder}/empty",
        "files: expected at least one of .npz, .nc, .nc4, .cdf, got none in {}/empty",
    ),
    "a missing file": (
        lambda folder: [folder / "no.npz"],
        "{}/no.npz: expected a file of .npz, .nc, .nc4, .cdf, got nothing there",
    ),
    "a folder in the list": (
        lambda folder: [folder],
        "{}: expected a file of .npz, .nc, .nc4, .cdf, got a folder",
    ),
    "another kind": (
        lambda folder: [f"{folder}/empty/x.txt"],
        "{}/empty/x.txt: expected a file of .npz, .nc, .nc4, .cdf, got another kind",
    ),
}


@pytest.mark.parametrize(("files", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_bad_files(files, message, npz):
    (npz / "empty").mkdir()
    (npz / "empty" / "x.txt").touch()
    with pytest.raises(InputError, match=f"^{re.escape(message.format(npz))}$"):
        Simulations.from_files(files(npz))


@pytest.mark.parametrize("phi", [[], ["a", 3], 3])
def test_bad_names_of_parameters(phi, npz):
    with pytest.raises(
        InputError, match=re.escape(f"phi: expected a name or a list of names, got {phi!r}")
    ):
        Simulations.from_files(npz, phi=phi)


@pytest.mark.parametrize("write", [as_npz, as_npz_compressed, as_netcdf])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_bad_numbers_are_named_when_they_are_read(write, value, tmp_path):
    path = tmp_path / ("run.nc" if write is as_netcdf else "run.npz")
    write(path, PHI[0], spoiled(Y[0], (12, 1), value))
    y = Simulations.from_files(tmp_path).y
    with pytest.raises(
        InputError,
        match=re.escape(
            f"{path}, y: expected finite float32 numbers, got 1 NaN or inf, the first at index (12, 1)"
        ),
    ):
        y[0]
    with pytest.raises(
        InputError,
        match=re.escape(
            f"{path}, y[10:15]: expected finite float32 numbers, got 1 NaN or inf, the first at index (2, 1)"
        ),
    ):
        y.windows(torch.tensor([0]), torch.tensor([10]), 5)
    assert torch.equal(y.windows(torch.tensor([0]), torch.tensor([13]), 5)[0], Y32[0, 13:18])


@pytest.mark.parametrize(
    ("write", "suffix"), [(as_npz, "npz"), (as_npz_compressed, "npz"), (as_netcdf, "nc")]
)
def test_files_that_change_after_opening_are_noticed(write, suffix, tmp_path):
    path = tmp_path / f"run.{suffix}"
    write(path, PHI[0], Y[0])
    y = Simulations.from_files(tmp_path).y
    write(path, PHI[0], np.concatenate([Y[0], Y[1]]))
    with pytest.raises(
        InputError, match=r", y: expected shape \(20, 3\) as in the first file, got \(40, 3\)"
    ):
        y.windows(torch.tensor([0]), torch.tensor([0]), 5)
    path.unlink()
    with pytest.raises(
        InputError, match=f"run.{suffix}, y: expected data that can be read, got FileNotFoundError"
    ):
        y[0]
    with pytest.raises(
        InputError, match=f"run.{suffix}: expected data that can be read, got FileNotFoundError"
    ):
        y.fingerprint()


@pytest.mark.parametrize("write", [as_npz, as_npz_compressed])
def test_a_damaged_member_fails_its_checksum(write, tmp_path):
    path = tmp_path / "run.npz"
    write(path, PHI[0], np.tile(Y[0], (100, 1)))
    y = Simulations.from_files(tmp_path).y
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        InputError,
        match=r"run\.npz, y: expected data that can be read, got (BadZipFile: Bad CRC-32|error: Error -3)",
    ):
        y[0]


@pytest.mark.parametrize("write", [as_npz, as_npz_compressed])
def test_another_checksum_is_noticed(write, tmp_path):
    path = tmp_path / "run.npz"
    write(path, PHI[0], Y[0])
    y = Simulations.from_files(tmp_path).y
    with zipfile.ZipFile(path) as archive:
        checksum = struct.pack("<L", archive.getinfo("y.npy").CRC)
    path.write_bytes(path.read_bytes().replace(checksum, b"\x01\x02\x03\x04"))
    with pytest.raises(
        InputError, match=r"run\.npz, y: expected data that can be read, got BadZipFile: Bad CRC-32"
    ):
        y[0]


@pytest.mark.parametrize("length", [5, T])
def test_an_array_shorter_than_its_header_says_is_noticed(length, tmp_path):
    array = io.BytesIO()
    np.save(array, Y[0])
    with zipfile.ZipFile(tmp_path / "run.npz", "w") as archive:
        archive.writestr("y.npy", array.getvalue()[:-8])
        archive.writestr("more.npy", array.getvalue())
    y = FileSource(np.arange(1), (T, K), [tmp_path / "run.npz"], "y")
    with pytest.raises(
        InputError,
        match=r"run\.npz, y: expected data that can be read, got (EOFError: not as many|ValueError: EOF: reading)",
    ):
        y.windows(torch.tensor([0]), torch.tensor([T - length]), length)


def test_bad_numbers_of_a_lazy_dataset_are_named_when_they_are_read(lazy):
    bad = lazy.chunk().assign(y=lazy["y"].chunk().where((lazy["run"] != 2) | (lazy["x"] != 1)))
    y = Simulations.from_xarray(bad, phi="phi", y="y", dimension="run").y
    assert torch.equal(y[1], Y32[1])
    with pytest.raises(
        InputError,
        match=r"^y, run 2\[4:9\]: expected finite float32 numbers, got 5 NaN or inf, the first at index \(0, 1\)$",
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
