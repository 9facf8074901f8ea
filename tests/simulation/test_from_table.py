"""Simulations from one table."""

import numpy as np
import pandas as pd
import pytest

import eande
from eande.foundations.checks import EandeWarning, InputError
from eande.simulation.read.from_table import as_pattern, open_table, tell_apart

NAMES = ["rate", "size", "day1", "day2", "day3"]


def table_of(n=40, **columns):
    rng = np.random.default_rng(0)
    values = rng.uniform(size=(n, len(NAMES)))
    return pd.DataFrame(values, columns=NAMES).assign(**columns)


def written(frame, path):
    separator = {".tsv": "\t", ".txt": " "}.get(path.suffix, ",")
    frame.to_csv(path, sep=separator, index=False)
    return path


@pytest.mark.parametrize("name", [None, "runs.csv", "runs.tsv", "runs.txt"])
def test_columns_of_parameters_and_of_data(name, tmp_path):
    frame = table_of()
    table = frame if name is None else written(frame, tmp_path / name)
    for y in (None, "day*", ["day1", "day2", "day3"]):
        simulations = eande.Simulations.from_table(table, phi=["rate", "size"], y=y)
        assert simulations.names == ("rate", "size")
        assert np.allclose(simulations.phi, frame[["rate", "size"]])
        assert np.allclose(simulations.y, frame[["day1", "day2", "day3"]])


def test_a_parquet_file_says_what_it_needs_or_is_read(tmp_path):
    path = tmp_path / "runs.parquet"
    try:
        table_of().to_parquet(path)
    except ImportError:
        path.write_bytes(b"")
        with pytest.raises(ImportError, match="needs pyarrow: pip install pyarrow"):
            eande.Simulations.from_table(path, phi=["rate", "size"])
    else:
        assert len(eande.Simulations.from_table(path, phi=["rate", "size"])) == 40


def test_rows_with_gaps_are_refused_together_or_count_as_failures(tmp_path):
    frame = table_of()
    frame.loc[3, "day2"] = np.nan
    frame.loc[7, ["day1", "day3"]] = np.inf
    path = written(frame, tmp_path / "runs.csv")
    path.write_text(path.read_text().replace("inf", "NA", 1))
    with pytest.raises(InputError, match=r"got 2 of 40 rows with NaN or inf \(broken='failed'"):
        eande.Simulations.from_table(path, phi=["rate", "size"])
    with pytest.warns(EandeWarning, match="2 of 40 rows are broken and count as failures"):
        found = eande.Simulations.from_table(path, phi=["rate", "size"], broken="failed")
    assert len(found) == 38
    assert np.allclose(found.failures.phi, frame.loc[[3, 7], ["rate", "size"]])
    assert found.failures.reasons[0] == "row 3: nan in day2"
    assert "and 1 more" in found.failures.reasons[1]


def test_texts_in_a_few_cells_are_broken_rows_and_no_other_kind_of_column(tmp_path):
    frame = table_of().astype({"day2": object})
    frame.loc[3, "day2"] = "solver failed"
    for table in (frame, written(frame, tmp_path / "runs.csv")):
        assert tell_apart(open_table(table)) == (["rate", "size"], ["day1", "day2", "day3"])
        with pytest.raises(InputError, match="1 of 40 rows with NaN, inf or texts"):
            eande.Simulations.from_table(table, phi=["rate", "size"])
        with pytest.warns(EandeWarning, match="row 3: 'solver failed' in day2"):
            found = eande.Simulations.from_table(table, phi=["rate", "size"], broken="failed")
        assert len(found) == 39
        assert found.failures.reasons == ("row 3: 'solver failed' in day2",)


def test_rows_of_equal_parameters_are_replicates():
    frame = table_of()
    frame.loc[20:, ["rate", "size"]] = frame.loc[:19, ["rate", "size"]].to_numpy()
    simulations = eande.Simulations.from_table(frame, phi=["rate", "size"])
    assert len(simulations.groups.unique()) == 20


@pytest.mark.parametrize(
    ("columns", "given", "message"),
    [
        ({}, {"phi": "speed"}, "phi: expected columns of table, one of rate, size, .* got 'speed'"),
        ({}, {"phi": "rate", "y": "hour*"}, r"y: expected columns of table, .* got 'hour\*'"),
        ({}, {"phi": "rate", "y": ["rate", "day1"]}, "expected other columns than phi, got 'rate'"),
        ({}, {"phi": NAMES}, "expected columns of data beside phi, got none"),
        ({}, {"phi": 3}, "phi: expected a name or a list of names, got 3"),
        ({"rate": np.nan}, {"phi": "rate"}, "finite parameters, got nan in row 0 of 'rate'"),
        ({"day2": "high"}, {"phi": "rate"}, "numbers in the column 'day2', got 'high' in row 0"),
        ({}, {"phi": "rate", "broken": "skip"}, "broken: expected one of"),
    ],
)
def test_what_is_no_table_of_simulations_is_refused(columns, given, message):
    with pytest.raises(InputError, match=message):
        eande.Simulations.from_table(table_of(**columns), **given)


def test_other_files_are_refused(tmp_path):
    (tmp_path / "runs.xlsx").write_bytes(b"")
    with pytest.raises(InputError, match=r"table: expected a DataFrame or a file, one of .csv"):
        eande.Simulations.from_table(tmp_path / "runs.xlsx", phi="rate")
    with pytest.raises(InputError, match="expected a file, got nothing there"):
        eande.Simulations.from_table(tmp_path / "nothing.csv", phi="rate")
    with pytest.raises(InputError, match="expected columns of different names, got two 'rate'"):
        eande.Simulations.from_table(table_of().rename(columns={"size": "rate"}), phi="rate")


@pytest.mark.parametrize(
    ("names", "phi", "data"),
    [
        (["rate", "size", "day1", "day2"], ["rate", "size"], ["day1", "day2"]),
        (["theta1", "theta2", "x_0", "x_1"], ["theta1", "theta2"], ["x_0", "x_1"]),
        (["t=0.5", "t=1.0", "R0"], ["R0"], ["t=0.5", "t=1.0"]),
        (["run", "k", "y[0]", "y[1]"], ["k"], ["y[0]", "y[1]"]),
        (["k10", "c_0.5h", "c_12h", "V"], ["k10", "V"], ["c_0.5h", "c_12h"]),
    ],
)
def test_names_tell_parameters_from_data(names, phi, data):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({name: rng.uniform(size=9) for name in names})
    if "run" in frame:
        frame["run"] = np.arange(1, 10)
    assert tell_apart(open_table(frame)) == (phi, data)


def test_names_that_do_not_tell_are_refused():
    with pytest.raises(InputError, match="--parameters A,B names the parameters"):
        tell_apart(open_table(pd.DataFrame(np.ones((4, 3)), columns=["a", "b", "c"])))
    with pytest.raises(InputError, match=r"called alike but for a number \(y1, y2"):
        tell_apart(open_table(pd.DataFrame(np.ones((4, 2)), columns=["y1", "y2"])))


def test_a_pattern_stands_for_data_where_it_fits_no_other_column():
    columns = open_table(table_of())
    assert as_pattern(columns, ["day1", "day2", "day3"]) == "day*"
    assert as_pattern(columns, ["day1", "day2"]) is None
    assert as_pattern(open_table(table_of(days=1.0)), ["day1", "day2", "day3"]) is None
