"""Files as people have them: patterns, tables of parameters, members that are broken."""

import re
import warnings

import numpy as np
import pandas
import pytest
import torch
import xarray

from eande.foundations.checks import EandeWarning, InputError
from eande.simulation.read.simulations import Simulations
from eande.training.prepare import training_prior

N = 12
PHI = np.random.default_rng(0).normal(size=(N, 2))
PHI32 = torch.as_tensor(PHI, dtype=torch.float32)
Y = np.random.default_rng(1).normal(size=(N, 5, 3))
Y32 = torch.as_tensor(Y, dtype=torch.float32)
FRAME = pandas.DataFrame(PHI, columns=["R0", "period"])


def name(i):
    return f"m{i:03d}.npz"


@pytest.fixture
def members(tmp_path):
    """A folder of N members without parameters in them."""
    for i in range(N):
        np.savez(tmp_path / name(i), y=Y[i])
    return tmp_path


def read(files, **options):
    return Simulations.from_files(files, progress=False, **options)


# What is read.


def test_a_pattern_finds_the_files_in_the_order_of_names(members):
    np.savez(members / "other.npz", y=Y[0] + 1)
    (members / ".m000.npz").touch()
    simulations = read(f"{members}/m*.npz", phi=PHI)
    assert torch.equal(simulations.phi, PHI32)
    assert torch.equal(simulations.y[:], Y32)
    assert len(read(str(members / "m00[0-4].*"), phi=PHI[:5])) == 5


def test_a_pattern_may_go_through_folders(tmp_path):
    for i in range(4):
        folder = tmp_path / f"run{i}" / "out"
        folder.mkdir(parents=True)
        np.savez(folder / "y.npz", phi=PHI[i], y=Y[i])
    assert torch.equal(read(f"{tmp_path}/*/out/y.npz").phi, PHI32[:4])
    assert torch.equal(read(f"{tmp_path}/**/*.npz").phi, PHI32[:4])


def test_a_folder_whose_name_looks_like_a_pattern_is_a_folder(tmp_path):
    folder = tmp_path / "runs[1]"
    folder.mkdir()
    np.savez(folder / "a.npz", phi=PHI[0], y=Y[0])
    assert len(read(folder)) == 1


def written(frame, **options):
    def write(folder):
        path = folder / "parameters.csv"
        frame.to_csv(path, **options)
        return path

    return write


SHUFFLED = FRAME.assign(file=[name(i) for i in range(N)]).sample(frac=1, random_state=0)
TABLES = {
    "an array": (lambda _: PHI, None),
    "a tensor": (lambda _: PHI32, None),
    "a list": (lambda _: PHI.tolist(), None),
    "a DataFrame": (lambda _: FRAME, ("R0", "period")),
    "a DataFrame without names": (lambda _: pandas.DataFrame(PHI), None),
    "a DataFrame with a column of files": (lambda _: SHUFFLED, ("R0", "period")),
    "a DataFrame indexed by files": (lambda _: SHUFFLED.set_index("file"), ("R0", "period")),
    "a CSV file": (written(FRAME, index=False), ("R0", "period")),
    "a CSV file as a text": (lambda f: str(written(FRAME, index=False)(f)), ("R0", "period")),
    "a CSV file with pandas' index": (written(FRAME), ("R0", "period")),
    "a CSV file without names": (written(FRAME, index=False, header=False), None),
    "a CSV file with semicolons": (written(FRAME, index=False, sep=";"), ("R0", "period")),
    "a CSV file with a column of files": (written(SHUFFLED, index=False), ("R0", "period")),
    "a CSV file with that and an index": (written(SHUFFLED), ("R0", "period")),
    "a CSV file indexed by files": (
        written(SHUFFLED.set_index("file").rename_axis(None)),
        ("R0", "period"),
    ),
    "a CSV file of names without endings": (
        written(SHUFFLED.assign(file=SHUFFLED["file"].str.removesuffix(".npz")), index=False),
        ("R0", "period"),
    ),
    "a CSV file of paths": (
        written(SHUFFLED.assign(file="somewhere/else/" + SHUFFLED["file"]), index=False),
        ("R0", "period"),
    ),
}


@pytest.mark.parametrize(("make", "names"), TABLES.values(), ids=TABLES)
def test_parameters_may_lie_beside_the_files(make, names, members):
    simulations = read(members, phi=make(members))
    assert torch.equal(simulations.phi, PHI32)
    assert torch.equal(simulations.y[:], Y32)
    assert simulations.names == names
    assert len(simulations.failures) == 0


def test_rows_follow_the_list_of_files(members):
    order = [3, 0, 7]
    files = [members / name(i) for i in order]
    simulations = read(files, phi=PHI[order])
    assert torch.equal(simulations.y[:], Y32[order])


def test_rows_without_names_are_refused_where_the_order_of_files_is_not_plain(tmp_path):
    for i in range(N):
        np.savez(tmp_path / f"m{i}.npz", y=Y[i])
    for files in (tmp_path, f"{tmp_path}/m*.npz"):
        with pytest.raises(
            InputError,
            match=r"^phi: expected a column 'file', or the files in a list .* got m10\.npz before "
            r"m2\.npz by letters, after it by numbers$",
        ):
            read(files, phi=PHI)
    simulations = read([tmp_path / f"m{i}.npz" for i in range(N)], phi=PHI)
    assert torch.equal(simulations.y[:], Y32)
    named = FRAME.assign(file=[f"m{i}" for i in range(N)])
    found = read(tmp_path, phi=named)
    assert torch.equal(found.y[2], Y32[10])
    assert torch.equal(found.phi[2], PHI32[10])


def test_names_are_those_of_scalars_and_of_labels(tmp_path):
    for i in range(3):
        dataset = xarray.Dataset(
            {
                "phi": ("parameter", PHI[i]),
                "plain": ("other", PHI[i]),
                "R0": PHI[i, 0],
                "y": ("time", Y[i, :, 0]),
            },
            coords={"parameter": ["u", "v"]},
            attrs={"period": PHI[i, 1]},
        )
        dataset.to_netcdf(tmp_path / f"{i}.nc", engine="h5netcdf")
    assert read(tmp_path, phi=["R0", "period"]).names == ("R0", "period")
    assert read(tmp_path, phi="R0").names == ("R0",)
    assert read(tmp_path).names == ("u", "v")
    assert read(tmp_path, phi="plain").names is None
    both = xarray.open_mfdataset(
        sorted(tmp_path.glob("*.nc")), combine="nested", concat_dim="run", engine="h5netcdf"
    )
    assert Simulations.from_xarray(both, phi="phi", y="y", dimension="run").names == ("u", "v")
    loaded = both.load()
    assert Simulations.from_xarray(loaded, phi=["R0"], y="y", dimension="run").names == ("R0",)
    # A member that labels its parameters in another order would be taken for the others' like.
    loaded.isel(run=0, drop=True).assign_coords(parameter=["v", "u"]).to_netcdf(
        tmp_path / "3.nc", engine="h5netcdf"
    )
    with pytest.raises(InputError, match=r"3\.nc, phi: expected the parameters \('u', 'v'\) as in"):
        read(tmp_path)


SERIES = np.random.default_rng(2).normal(size=(N, 7))
SERIES32 = torch.as_tensor(SERIES, dtype=torch.float32)


@pytest.fixture
def tables(tmp_path):
    """A folder of N tables with a column of times, and their parameters beside them."""
    for i in range(N):
        pandas.DataFrame({"day": np.arange(7), "cases": SERIES[i]}).to_csv(
            tmp_path / f"run{i:02}.csv", index=False
        )
    frame = FRAME.assign(run=[f"run{i:02}" for i in range(N)])[["run", "R0", "period"]]
    frame.iloc[::-1].to_csv(tmp_path / "parameters.csv", index=False)
    return tmp_path


def test_tables_of_text_are_data_column_by_column(tables):
    beside = tables / "parameters.csv"
    simulations = read(tables, phi=beside, y="cases")
    assert simulations.names == ("R0", "period")
    assert torch.equal(simulations.phi, PHI32)
    assert torch.equal(simulations.y[:], SERIES32)
    assert torch.equal(simulations.y.windows([3], torch.tensor([2]), 3)[0], SERIES32[3, 2:5])
    whole = read(tables, phi=beside)
    assert whole.y_shape == (7, 2)
    assert torch.equal(whole.y[:][..., 1], SERIES32)
    assert torch.equal(whole.y[0][:, 0], torch.arange(7.0))


def test_a_table_that_is_no_simulation_is_refused_or_fails(tables):
    beside = tables / "parameters.csv"
    (tables / "run03.csv").write_text("day,cases\n0,1.5\n1,\n" + "2,1\n" * 5)
    (tables / "run05.csv").write_text("day,deaths\n0,1.5\n")
    (tables / "run07.csv").write_text("day,cases\n0,many\n")
    with pytest.raises(InputError, match="2 of 12 files broken"):
        read(tables, phi=beside, y="cases")
    with pytest.warns(EandeWarning, match="3 of 12 files are broken"):
        kept = read(tables, phi=beside, y="cases", broken="failed")
    assert len(kept) == N - 3
    reasons = kept.failures.reasons
    assert sorted(reason.partition(":")[0] for reason in reasons) == [
        "run03.csv",
        "run05.csv",
        "run07.csv",
    ]
    good = read([tables / "run02.csv", tables / "run03.csv"], phi=PHI[:2], y="cases")
    with pytest.raises(InputError, match=r"run03.csv, cases: .*broken='failed'\) finds all such"):
        good.y[:]
    with pytest.raises(InputError, match=r"expected the parameters in a table beside the files"):
        read([tables / "run00.csv"], phi="R0", y="cases")


def test_arrays_in_npy_files_are_data(tmp_path):
    for i in range(N):
        np.save(tmp_path / f"{i:02}.npy", np.asfortranarray(Y[i]) if i % 2 else Y[i])
    # Tables lie beside data: of a folder with both kinds they are no members.
    FRAME.to_csv(tmp_path / "anything.csv", index=False)
    simulations = read(tmp_path, phi=tmp_path / "anything.csv")
    assert torch.equal(simulations.y[:], Y32)
    assert torch.equal(simulations.y.windows([4], torch.tensor([1]), 2)[0], Y32[4, 1:3])
    (tmp_path / "03.npy").write_bytes((tmp_path / "03.npy").read_bytes()[:-8])
    np.save(tmp_path / "05.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="2 of 12 files broken"):
        read(tmp_path, phi=FRAME)


# What is refused.

BAD_TABLES = {
    "too few rows": (lambda _: PHI[:-1], "phi: expected one row for each of 12 files, got 11"),
    "another dimension": (
        lambda _: PHI[0],
        "phi: expected shape (n, D), got (2,)",
    ),
    "NaN": (
        lambda _: np.where(PHI[3, 1] == PHI, np.nan, PHI),
        "phi: expected finite float32 numbers, got 1 NaN or inf, the first at index (3, 1)",
    ),
    "a DataFrame of words": (
        lambda _: FRAME.assign(kind="wet"),
        "phi: expected numbers in the column 'kind' (a column 'file' names the files), got 'wet' "
        "in row 0",
    ),
    "an empty cell": (
        written(FRAME.reindex([0, 1, 2, 3, 99, *range(5, N)]), index=False),
        "{}/parameters.csv: expected finite float32 numbers, got 2 NaN or inf, the first in row 4 "
        "of 'R0'",
    ),
    "two columns of a name": (
        lambda _: pandas.DataFrame(PHI, columns=["a", "a"]),
        "phi: columns: expected 2 different names, got ['a', 'a']",
    ),
    "two rows of a file": (
        lambda _: FRAME.assign(file=name(0)),
        "phi: expected one file and one row of each name, got two rows of 'm000.npz'",
    ),
    "no such table": (
        lambda folder: folder / "no.csv",
        "{}/no.csv: expected a file, got nothing there",
    ),
    "only a header": (
        written(FRAME[:0], index=False),
        "{}/parameters.csv: expected a row per simulation and a column per parameter, got 2 "
        "columns and 0 rows",
    ),
}


@pytest.mark.parametrize(("make", "message"), BAD_TABLES.values(), ids=BAD_TABLES)
def test_a_table_that_does_not_fit_is_refused_in_a_line(make, message, members):
    with pytest.raises(InputError, match=f"^{re.escape(message.format(members))}$"):
        read(members, phi=make(members))


def test_lines_of_other_lengths_and_empty_files_are_refused(members):
    path = members / "parameters.csv"
    path.write_text("a,b\n1,2\n3\n")
    with pytest.raises(InputError, match=r"expected 2 cells in every row, got 1 in line 3$"):
        read(members, phi=path)
    path.write_text("")
    with pytest.raises(InputError, match=r"expected a table of numbers, got an empty file$"):
        read(members, phi=path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="expected data that can be read, got UnicodeDecodeError"):
        read(members, phi=path)


@pytest.mark.parametrize("phi", [np.zeros((300, 2)), np.zeros((300, 2)).tolist(), [[1, 2]] * 300])
def test_an_array_that_does_not_fit_is_not_printed(phi, members):
    with pytest.raises(InputError) as caught:
        read(members, phi=phi)
    assert len(str(caught.value)) < 100


# Members that are broken.


@pytest.fixture
def damaged(tmp_path):
    """A folder of members with their parameters, six of them broken in six ways."""
    for i in range(N):
        np.savez(tmp_path / name(i), phi=PHI[i], y=Y[i])
    (tmp_path / name(0)).write_text("these are words")
    np.savez(tmp_path / name(2), phi=PHI[2], y=Y[2, 1:])
    np.savez(tmp_path / name(4), phi=PHI[4])
    np.savez(tmp_path / name(6), phi=[1.0, 2.0, 3.0], y=Y[6])
    spoiled = Y.copy()
    spoiled[8, 1, 1] = np.nan
    np.savez(tmp_path / name(8), phi=PHI[8], y=spoiled[8])
    spoiled[10, 2, 0] = np.inf
    np.savez(tmp_path / name(10), phi=PHI[10], y=spoiled[10])
    return tmp_path


def test_all_broken_files_are_refused_in_one_line(damaged):
    with pytest.raises(InputError) as caught:
        read(damaged)
    line = str(caught.value)
    assert line.startswith(
        "files: expected simulations, got 4 of 12 files broken (broken='failed' counts them as "
        "failures): "
    )
    assert "\n" not in line
    for told in (
        "m000.npz: expected data that can be read, got ",
        "m002.npz: y: expected shape (5, 3) as in m001.npz, got (4, 3)",
        "m004.npz: y: expected one of 'phi', got 'y'",
        "m006.npz: phi: expected 2 parameters as in m001.npz, got 3",
    ):
        assert told in line, line
    assert str(damaged) not in line


def test_broken_files_count_as_failures_and_are_told_at_once(damaged):
    with pytest.warns(EandeWarning) as warned:
        simulations = read(damaged, broken="failed")
    assert len(warned) == 1
    assert warned[0].filename == __file__
    line = str(warned[0].message)
    assert line.startswith(
        "6 of 12 files are broken and count as failures, but 2 without parameters are left out: "
    )
    assert all(name(i) in line for i in (0, 2, 4, 6, 8, 10))
    assert "\n" not in line
    good = [1, 3, 5, 7, 9, 11]
    assert torch.equal(simulations.phi, PHI32[good])
    assert torch.equal(simulations.y[:], Y32[good])
    assert torch.equal(simulations.failures.phi, PHI32[[2, 4, 8, 10]])
    reasons = simulations.failures.reasons
    assert [reason.partition(":")[0] for reason in reasons] == [name(i) for i in (2, 4, 8, 10)]
    assert "got 1 NaN or inf, the first at index (1, 1)" in reasons[2]
    assert torch.isfinite(simulations.in_memory().y).all()


def test_files_broken_alike_are_listed_together(members):
    for i in (2, 5, 7):
        np.savez(members / name(i), y=np.full_like(Y[0], np.nan))
    (members / name(9)).write_text("words")
    with pytest.warns(EandeWarning, match="4 of 12 files are broken") as warned:
        read(members, phi=PHI, broken="failed")
    line = str(warned[0].message)
    assert "m002.npz, m005.npz, m007.npz: y: expected finite float32 numbers, got 15 NaN" in line
    assert "m009.npz: expected data that can be read" in line


def test_with_a_table_every_broken_file_keeps_its_parameters(damaged):
    (damaged / name(11)).unlink()
    table = FRAME.assign(file=[name(i) for i in range(N)]).drop(index=1)
    with pytest.warns(EandeWarning, match="7 of 12 files .* but 1 without parameters are left out"):
        simulations = read(damaged, phi=table, broken="failed")
    # A member of three parameters is none too many where the table has them.
    assert torch.equal(simulations.phi, PHI32[[3, 5, 6, 7, 9]])
    assert torch.equal(simulations.failures.phi, PHI32[[0, 2, 4, 8, 10, 11]])
    assert "a row of parameters alone" in simulations.failures.reasons[-1]
    with pytest.raises(InputError, match=r"m001\.npz: expected a row of parameters, got none"):
        read(damaged, phi=table)


def test_files_of_a_list_that_are_not_there_are_broken_ones(members):
    files = [members / name(i) for i in range(N)]
    files[5].unlink()
    with pytest.raises(
        InputError, match=r"m005\.npz: expected a file of .* got nothing there; bro"
    ):
        read(files, phi=PHI)
    with pytest.warns(EandeWarning, match=r"1 of 12 files are broken and count as failures: m005"):
        simulations = read(files, phi=PHI, broken="failed")
    assert torch.equal(simulations.failures.phi, PHI32[5:6])
    assert len(simulations) == N - 1


def test_where_nothing_is_broken_nothing_is_said(members):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(read(members, phi=PHI, broken="failed")) == N


def test_files_that_are_all_broken_tell_of_the_call(damaged):
    for broken in ("refuse", "failed"):
        with pytest.raises(
            InputError, match=r"m000\.npz: expected data .* \(and 11 more files are broken\)$"
        ):
            read(damaged, y="data", broken=broken)
    with pytest.raises(InputError, match="broken: expected one of 'refuse', 'failed', got 'drop'"):
        read(damaged, broken="drop")


def test_a_thousand_broken_files_do_not_make_a_page(tmp_path):
    np.savez(tmp_path / "good.npz", phi=PHI[0], y=Y[0])
    for i in range(1_000):
        (tmp_path / f"bad-{i:04d}.npz").touch()
    message = r"1000 of 1001 files broken .*bad-0001\.npz, .* and 9\d\d more: expected data"
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path)
    assert len(str(caught.value)) < 1_500


def test_many_reasons_do_not_make_a_page_either(tmp_path):
    np.savez(tmp_path / "good.npz", phi=PHI[0], y=Y[0])
    for i in range(300):
        np.savez(tmp_path / f"bad-{i:04d}.npz", phi=PHI[0], y=np.ones(i + 1))
    with pytest.raises(
        InputError, match=r"300 of 301 files broken .*; … \(300 in all\)$"
    ) as caught:
        read(tmp_path)
    assert len(str(caught.value)) < 1_500


def test_broken_members_stay_in_as_negatives(damaged):
    """What training takes for the parameters that were tried."""
    with pytest.warns(EandeWarning, match="count as failures"):
        simulations = read(damaged, broken="failed")
    drawn = training_prior(None, simulations, None)
    assert len(drawn.draws) == len(simulations) + 4
    part = simulations[[0, 1, 2]]
    assert len(part.failures) == 2
