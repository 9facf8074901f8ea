"""Samples as pandas and xarray have them."""

import sys

import numpy as np
import pandas
import pytest
import xarray

import eande
from eande.simulators.von_mises_fisher import VonMisesFisher
from helpers.models import exact_model

PRODUCT = {"product": lambda p: p["phi1"] * p["phi2"]}


@pytest.fixture(scope="module")
def posterior():
    task = VonMisesFisher(8, seed=0)
    y = task(task.prior.sample(1, seed=1).numpy(), np.random.default_rng(0))[0]
    return exact_model(task).posterior(y)


def test_a_data_frame_has_the_samples_in_named_columns(posterior):
    frame = posterior.to_dataframe(50, seed=3, derived=PRODUCT)
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == ["phi1", "phi2", "product"]
    drawn = posterior.sample(50, seed=3)[0].numpy()
    assert np.array_equal(frame[["phi1", "phi2"]].to_numpy(), drawn)
    assert frame["product"].to_numpy() == pytest.approx(drawn.prod(1))
    assert len(posterior.to_dataframe(7, sampler="bank")) == 7


def test_a_dataset_has_a_variable_per_parameter_and_says_how_it_was_drawn(posterior, tmp_path):
    dataset = posterior.to_xarray(50, seed=3, derived=PRODUCT)
    assert isinstance(dataset, xarray.Dataset)
    assert list(dataset.data_vars) == ["phi1", "phi2", "product"]
    assert dataset["phi1"].dims == ("draw",)
    assert np.array_equal(dataset["phi1"], posterior.sample(50, seed=3)[0][:, 0])
    assert "acceptance_rate" in dataset.attrs["sampler"]
    dataset.to_netcdf(tmp_path / "samples.nc")
    with xarray.open_dataset(tmp_path / "samples.nc") as again:
        assert again.identical(dataset)


def test_a_column_called_like_the_dimension_is_refused(posterior):
    drawn = {"draw": lambda p: p["phi1"]}
    with pytest.raises(eande.InputError, match="names of their own, got 'draw'"):
        posterior.to_xarray(5, derived=drawn)
    assert list(posterior.to_dataframe(5, derived=drawn).columns) == ["phi1", "phi2", "draw"]


@pytest.mark.parametrize(
    ("method", "library"), [("to_dataframe", "pandas"), ("to_xarray", "xarray")]
)
def test_where_a_library_is_missing_a_line_says_what_to_install(
    posterior, monkeypatch, method, library
):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=rf"^{method} needs {library}: pip install [^\n]+$"):
        getattr(posterior, method)(5)
