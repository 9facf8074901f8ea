"""Simulations in npz and NetCDF files."""

import io
import os
import subprocess
import sys

import h5py
import numpy as np
import pytest
import torch
import xarray

from eande.foundations import files
from eande.foundations.checks import InputError
from eande.simulation.read.from_files import FileSource
from eande.simulation.read.simulations import Simulations
from helpers.written_files import (
    PHI,
    PHI32,
    RNG,
    Y32,
    K,
    N,
    T,
    Y,
    as_netcdf,
    as_npz,
    as_npz_compressed,
    check_reading,
)


def as_npz_float32(path, phi, y):
    as_npz(path, phi.astype(np.float32), y.astype(np.float32))


def as_npz_fortran(path, phi, y):
    as_npz(path, phi, np.asfortranarray(y))


def as_npz_big_endian(path, phi, y):
    as_npz(path, phi, y.astype(">f8"))


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

    monkeypatch.setattr(files, "FileIO", Counting)
    return counted


def test_of_an_uncompressed_npz_only_the_window_is_read(tmp_path, monkeypatch):
    y = RNG.normal(size=(200_000, 4)).astype(np.float32)
    as_npz(tmp_path / "plain.npz", PHI[0], y)
    as_npz_compressed(tmp_path / "small.npz", PHI[0], y)
    plain, small = (
        Simulations.from_files([tmp_path / name]).y for name in ("plain.npz", "small.npz")
    )
    index = torch.tensor([0])
    starts = torch.tensor([123_456])
    counted = count_bytes_read(monkeypatch)
    assert torch.equal(plain.windows(index, starts, 1_000)[0], torch.from_numpy(y[123_456:124_456]))
    assert sum(counted) > y.nbytes, "once, the whole is compared with its checksum"
    counted.clear()
    plain.windows(index, starts, 1_000)
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
    """Of the data the last chunk is damaged, of the times all, with checksums to tell.

    Windows of other chunks come, the whole does not.
    """
    options = {
        "encoding": {
            "y": {"chunksizes": (5, K), "fletcher32": True},
            "time": {"chunksizes": (T,), "fletcher32": True},
        }
    }
    as_netcdf(tmp_path / "run.nc", PHI[0], Y[0], **options)
    y = Simulations.from_files(tmp_path).y
    before = (tmp_path / "run.nc").stat()
    damage_chunk(tmp_path / "run.nc", "y", 3)
    damage_chunk(tmp_path / "run.nc", "time", 0)
    # As a disk does it, without a new time of change.
    os.utime(tmp_path / "run.nc", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert torch.equal(y.windows(torch.tensor([0]), torch.tensor([3]), 12)[0], Y32[0, 3:15])
    with pytest.raises(
        InputError, match=r"run\.nc, y: expected data that can be read, got OSError: "
    ):
        y[0]


def test_a_fingerprint_changes_with_the_files_and_with_nothing_else(npz):
    simulations = Simulations.from_files(npz)
    before = simulations.fingerprint()
    assert Simulations.from_files(npz).fingerprint() == before
    part = simulations.y.subset(slice(1, None)).fingerprint()
    assert part != simulations.y.fingerprint()
    os.utime(npz / "run-0.npz", ns=(0, 0))
    assert simulations.fingerprint() != before
    assert simulations.y.subset(slice(1, None)).fingerprint() == part


def test_reading_needs_xarray_only_where_it_is_used(npz, monkeypatch):
    as_netcdf(npz / "run.nc", PHI[0], Y[0])
    monkeypatch.setitem(sys.modules, "xarray", None)
    assert len(Simulations.from_files(npz.glob("*.npz"))) == N
    hint = r" needs xarray: pip install xarray h5netcdf"
    with pytest.raises(ImportError, match="a NetCDF file" + hint):
        Simulations.from_files(npz)
    with pytest.raises(ImportError, match=r"Simulations\.from_xarray" + hint):
        Simulations.from_xarray(None, phi="phi", y="y", dimension="run")


def test_importing_the_reader_does_not_import_xarray():
    code = """
import sys
import eande.simulation.read.simulations

print([name for name in ('xarray', 'dask', 'h5py', 'pandas') if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_file_that_was_replaced_is_not_read_with_the_parameters_of_the_old_one(npz):
    simulations = Simulations.from_files(npz, phi="phi", y="y")
    first = sorted(npz.iterdir())[0]
    shape = simulations.y[0].shape
    np.savez(first, phi=np.zeros(2), y=np.ones(tuple(shape)))
    with pytest.raises(InputError, match=r"expected the file whose parameters were read"):
        simulations.y[0]
    assert torch.isfinite(simulations.y[1]).all()
