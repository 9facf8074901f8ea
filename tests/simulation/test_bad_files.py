"""Files that are no simulations, or damaged, are named."""

import io
import os
import re
import struct
import zipfile

import numpy as np
import pytest
import torch

from eande.foundations.checks import InputError
from eande.simulation.read.from_files import FileSource
from eande.simulation.read.simulations import Simulations
from helpers.written_files import PHI, Y32, K, N, T, Y, as_netcdf, as_npz, as_npz_compressed


@pytest.fixture
def npz(tmp_path):
    for i in range(N):
        as_npz(tmp_path / f"run-{i}.npz", PHI[i], Y[i])
    return tmp_path


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
        ", y: expected shape (20, 3) as in 0.npz, got (19, 3)",
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
    hint = "; broken='failed' counts it as a failure"
    with pytest.raises(InputError, match=f"^{re.escape(f'{npz}/1.npz{message}{hint}')}$"):
        Simulations.from_files(npz)


def test_objects_are_not_unpickled(tmp_path):
    np.savez(tmp_path / "phi.npz", phi=np.array([print], dtype=object), y=Y[0])
    np.savez(tmp_path / "y.npz", phi=PHI[0], y=np.array([print], dtype=object))
    with pytest.raises(
        InputError,
        match=r"phi\.npz: expected data that can be read, got ValueError: Object arrays "
        r"cannot be loaded",
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
        InputError, match=r"run\.npz: expected data that can be read, got BadZipFile"
    ):
        Simulations.from_files(tmp_path)


BAD_FILES = {
    "a file": (
        lambda folder: folder / "run-0.npz",
        "files: expected a folder, a pattern such as 'members/*.nc' or a list of files, got "
        "{}/run-0.npz",
    ),
    "nothing": (
        lambda folder: f"{folder}/no",
        "files: expected a folder, a pattern such as 'members/*.nc' or a list of files, got {}/no",
    ),
    "a pattern of nothing": (
        lambda folder: f"{folder}/*.nc",
        "files: expected at least one of .npz, .nc, .nc4, .cdf, .npy, .csv, got none in {}/*.nc",
    ),
    "a number": (lambda folder: 3, "files: expected the name of a folder, got 3"),
    "an empty list": (
        lambda folder: [],
        "files: expected at least one of .npz, .nc, .nc4, .cdf, .npy, .csv, got none in []",
    ),
    "an empty folder": (
        lambda folder: f"{folder}/empty",
        "files: expected at least one of .npz, .nc, .nc4, .cdf, .npy, .csv, got none in {}/empty",
    ),
    "a missing file": (
        lambda folder: [folder / "no.npz"],
        "{}/no.npz: expected a file of .npz, .nc, .nc4, .cdf, .npy, .csv, got nothing there",
    ),
    "a folder in the list": (
        lambda folder: [folder],
        "{}: expected a file of .npz, .nc, .nc4, .cdf, .npy, .csv, got a folder",
    ),
    "another kind": (
        lambda folder: [f"{folder}/empty/x.txt"],
        "{}/empty/x.txt: expected a file of .npz, .nc, .nc4, .cdf, .npy, .csv, got another kind",
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
            f"{path}, y: expected finite float32 numbers, got 1 NaN or inf, the first at "
            f"index (12, 1)"
        ),
    ):
        y[0]
    with pytest.raises(
        InputError,
        match=re.escape(
            f"{path}, y[10:15]: expected finite float32 numbers, got 1 NaN or inf, the first "
            f"at index (2, 1)"
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
    with pytest.raises(InputError, match=r"expected the file whose parameters were read, got ano"):
        y.windows(torch.tensor([0]), torch.tensor([0]), 5)
    path.unlink()
    with pytest.raises(InputError, match=f"run.{suffix}: expected a file, got nothing there"):
        y[0]
    with pytest.raises(
        InputError, match=f"run.{suffix}: expected data that can be read, got FileNotFoundError"
    ):
        y.fingerprint()


@pytest.mark.parametrize("write", [as_npz, as_npz_compressed])
def test_a_damaged_member_fails_its_checksum(write, tmp_path):
    path = tmp_path / "run.npz"
    write(path, PHI[0], np.tile(Y[0], (100, 1)))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    y = Simulations.from_files(tmp_path).y
    with pytest.raises(
        InputError,
        match=r"run\.npz, y: expected data that can be read, got (BadZipFile: Bad "
        r"CRC-32|error: Error -3)",
    ):
        y[0]


@pytest.mark.parametrize("write", [as_npz, as_npz_compressed])
def test_another_checksum_is_noticed(write, tmp_path):
    path = tmp_path / "run.npz"
    write(path, PHI[0], Y[0])
    with zipfile.ZipFile(path) as archive:
        checksum = struct.pack("<L", archive.getinfo("y.npy").CRC)
    path.write_bytes(path.read_bytes().replace(checksum, b"\x01\x02\x03\x04"))
    # A member this small is read to its end with its header.
    with pytest.raises(
        InputError, match=r"run\.npz: expected data that can be read, got BadZipFile: Bad CRC-32"
    ):
        Simulations.from_files(tmp_path)


@pytest.mark.parametrize("length", [5, T])
def test_an_array_shorter_than_its_header_says_is_noticed(length, tmp_path):
    array = io.BytesIO()
    np.save(array, Y[0])
    with zipfile.ZipFile(tmp_path / "run.npz", "w") as archive:
        archive.writestr("y.npy", array.getvalue()[:-8])
        archive.writestr("more.npy", array.getvalue())
    state = (tmp_path / "run.npz").stat()
    identity = (state.st_ino, state.st_size, state.st_mtime_ns)
    y = FileSource(np.arange(1), (T, K), [tmp_path / "run.npz"], "y", [], [identity])
    with pytest.raises(
        InputError,
        match=r"run\.npz, y: expected data that can be read, got (EOFError: not as "
        r"many|ValueError: EOF: reading)",
    ):
        y.windows(torch.tensor([0]), torch.tensor([T - length]), length)


def test_a_window_of_a_damaged_member_fails_its_checksum(tmp_path):
    path = tmp_path / "run.npz"
    as_npz(path, PHI[0], np.tile(Y[0], (100, 1)))
    window = (torch.tensor([0]), torch.tensor([3]), 5)
    expected = Simulations.from_files(tmp_path).y.windows(*window)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 64
    path.write_bytes(content)
    y = Simulations.from_files(tmp_path).y
    for _ in range(2):
        with pytest.raises(InputError, match=r"run\.npz, y.*got BadZipFile: Bad CRC-32"):
            y.windows(*window)
    content[len(content) // 2] ^= 64
    path.write_bytes(content)
    assert torch.equal(Simulations.from_files(tmp_path).y.windows(*window), expected)


def npy(header, numbers=b"", version=1):
    text = header.encode() + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H", len(text)) + text + numbers


def archived(path, compression=zipfile.ZIP_STORED, **members):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)


def header_of(shape):
    return f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}"


GOOD = npy(header_of("(2,)"), bytes(16))
BAD_HEADERS = {
    "huge": header_of("(1000000000, 1000000000)"),
    "beyond 64 bits": header_of(f"({10**30},)"),
    "negative": header_of("(-1,)"),
    "negative twice": header_of("(-1, -2)"),
    "more than there is": header_of("(3,)"),
    "less than there is": header_of("(1,)"),
    "nested": "(" * 5_000,
    "no header": "{}",
    "broken": "{'descr': '<f8', 'shape': (2L",
    "words": "import os",
    "kind of its own": "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (2,), }",
}


@pytest.mark.parametrize("member", ["phi", "y"])
@pytest.mark.parametrize("header", BAD_HEADERS.values(), ids=BAD_HEADERS)
def test_a_header_that_cannot_be_true_is_refused_in_a_line(tmp_path, header, member):
    members = {"phi": GOOD, "y": GOOD} | {member: npy(header, bytes(16))}
    archived(tmp_path / "run.npz", **members)
    with pytest.raises(InputError) as caught:
        _ = Simulations.from_files(tmp_path).y[:]
    assert "run.npz" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_header_of_python_2_is_read(tmp_path):
    archived(tmp_path / "run.npz", phi=npy(header_of("(2L,)"), bytes(16)), y=GOOD)
    assert Simulations.from_files(tmp_path).phi.tolist() == [[0, 0]]


def test_parameters_that_would_fill_the_memory_are_not_read(tmp_path):
    """Four million zeros take a few kilobytes, compressed."""
    number = 4_000_000
    content = npy(header_of(f"({number},)"), bytes(8 * number))
    archived(tmp_path / "run.npz", zipfile.ZIP_DEFLATED, phi=content, y=GOOD)
    with pytest.raises(
        InputError, match=r"run\.npz, phi: expected at most 1000000 numbers, got 4000000"
    ):
        Simulations.from_files(tmp_path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_other_compressions_are_read_and_their_damage_is_said(tmp_path, compression):
    path = tmp_path / "run.npz"
    archived(path, compression, phi=GOOD, y=npy(header_of("(2000,)"), Y.tobytes()[:800] * 20))
    y = Simulations.from_files(tmp_path).y
    assert y[:].shape == (1, 2_000)
    whole = path.read_bytes()
    lines = []
    for place in range(200, len(whole), 7):
        content = bytearray(whole)
        content[place] ^= 255
        path.write_bytes(content)
        try:
            _ = y[:]
        except InputError as error:
            lines.append(str(error))
    assert len(lines) > 50
    assert all("run.npz" in line and "\n" not in line for line in lines)


def test_a_file_that_becomes_a_pipe_is_refused(tmp_path):
    for write, name in ((as_npz, "run.npz"), (as_netcdf, "run.nc")):
        folder = tmp_path / write.__name__
        folder.mkdir()
        write(folder / name, PHI[0], Y[0])
        y = Simulations.from_files(folder).y
        (folder / name).unlink()
        os.mkfifo(folder / name)
        with pytest.raises(InputError, match="expected the file whose parameters were read, got"):
            _ = y[:]
