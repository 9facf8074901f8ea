"""Samples and diagnoses as ArviZ containers."""

import math

import arviz_stats
import numpy as np
import pytest
import torch
import xarray

import eande
from eande.bridges.arviz import diagnosis_to_arviz, to_arviz
from eande.diagnostics.diagnose import diagnose
from eande.similarities.dot import Dot
from helpers.models import Function

pytestmark = pytest.mark.filterwarnings("ignore")  # of sbi and what it uses
SIGMA = 0.2
OBSERVED = torch.tensor([0.3, -0.4])


class Counting(torch.nn.Module):
    """An encoder that counts the data it sees."""

    def __init__(self):
        super().__init__()
        self.rows = 0

    def forward(self, y):
        self.rows += len(y)
        return torch.cat([y, -0.5 * torch.ones(len(y), 1)], dim=1) / SIGMA**2 * math.sqrt(3)


@pytest.fixture
def model():
    """The exact ratio of y = φ + noise in a box."""
    prior = eande.BoxPrior([-1, -1], [1, 1], names=["a", "b"])
    emulator = Function(lambda phi: torch.cat([phi, phi.square().sum(1, keepdim=True)], dim=1))
    made = eande.EmbedAndEmulate(
        Counting(), emulator, Dot(3), prior, y_shape=(2,), embedding_dimension=3
    )
    made.encoder.rows = 0
    return made


def simulator(phi, rng):
    return phi + SIGMA * rng.standard_normal(phi.shape)


def test_samples_come_as_arvizs_container(model):
    tree = to_arviz(model.posterior(OBSERVED), samples=500, seed=1)
    assert set(tree.children) == {"posterior", "sample_stats", "prior"}
    assert tree["posterior"]["a"].shape == (1, 500)
    summary = arviz_stats.summary(tree)
    assert summary.loc["a", "mean"] == pytest.approx(0.3, abs=0.05)
    assert tree["sample_stats"]["log_ratio"].shape == (1, 500)


def test_predictive_and_observed_data_are_read_back_by_arviz(model, tmp_path):
    posterior = model.posterior(OBSERVED)
    phi, _ = posterior.sample(300, seed=0)
    made = simulator(phi.numpy(), np.random.default_rng(0))
    tree = to_arviz(posterior, samples=300, predictive=made, observed=OBSERVED)
    tree.to_netcdf(tmp_path / "tree.nc")
    with xarray.open_datatree(tmp_path / "tree.nc") as again:
        assert set(again.children) == {
            "posterior",
            "sample_stats",
            "prior",
            "posterior_predictive",
            "observed_data",
        }
        assert again["observed_data"]["y"].values == pytest.approx(OBSERVED.numpy())
        predicted = again["posterior_predictive"]["y"]
        assert predicted.dims[:2] == ("chain", "draw")
        assert np.array_equal(predicted[0], made.astype(np.float32))
        # ArviZ itself: summaries of both, by the names of their groups.
        summary = arviz_stats.summary(again, group="posterior_predictive")
        assert summary.loc["y[0]", "mean"] == pytest.approx(0.3, abs=0.05)
        assert not any("likelihood" in group for group in again.children)
        assert "log_likelihood" not in again["sample_stats"]


def test_simulations_are_predictive_data_and_derived_quantities_variables(model):
    phi = model.posterior(OBSERVED).sample(50, seed=0)[0]
    simulations = eande.Simulations.from_arrays(phi, phi + 1)
    tree = to_arviz(
        model.posterior(OBSERVED),
        samples=100,
        prior_samples=80,
        predictive=simulations,
        derived={"sum": lambda p: p["a"] + p["b"]},
    )
    assert np.array_equal(tree["posterior_predictive"]["y"][0], simulations.y)
    assert "observed_data" not in tree.children
    for group, count in (("posterior", 100), ("prior", 80)):
        found = tree[group]
        assert found["sum"].shape == (1, count)
        assert found["sum"].values == pytest.approx((found["a"] + found["b"]).values)


def test_data_that_do_not_belong_together_are_refused(model):
    posterior = model.posterior(OBSERVED)
    with pytest.raises(
        eande.InputError, match=r"predictive: expected shape \(m, 2\), got \(5, 3\)"
    ):
        to_arviz(posterior, samples=5, predictive=np.zeros((5, 3)), observed=OBSERVED)
    with pytest.raises(eande.InputError, match="posterior: expected one beside predictive="):
        to_arviz([posterior, posterior], samples=5, observed=OBSERVED)


def test_several_posteriors_have_a_dimension_of_their_own(model):
    tree = to_arviz(model.posteriors(torch.tensor([[0.3, -0.4], [-0.5, 0.1]])), samples=300)
    assert tree["posterior"]["b"].dims == ("chain", "draw", "observation")
    assert np.allclose(tree["posterior"]["a"].mean(("chain", "draw")), [0.3, -0.5], atol=0.06)
    # Not the same candidates for both.
    assert not np.isin(
        tree["posterior"]["a"].values[0, :, 0], tree["posterior"]["a"].values[0, :, 1]
    ).any()
    with pytest.raises(eande.InputError, match="posterior: expected at least one, got none"):
        to_arviz([])


def test_a_diagnosis_comes_as_arvizs_container(model):
    held_out = eande.simulate(simulator, model.prior, 100, seed=1, progress=False)
    tree = diagnosis_to_arviz(diagnose(model, held_out, draws=2_000))
    assert tree["posterior"]["coverage"].shape == (1, 100)
    assert float(tree["posterior"]["a"].max()) <= 1


def named(model, *names):
    prior = eande.BoxPrior([-1, -1], [1, 1], names=names)
    return eande.EmbedAndEmulate(
        model.encoder, model.emulator, model.similarity, prior, y_shape=(2,), embedding_dimension=3
    )


def test_nothing_vanishes_on_the_way_to_arviz(model):
    y = torch.zeros(2, 2)
    for wrong, message in (
        (
            lambda: to_arviz(model),
            r"posterior: expected a Posterior \(from a model: model.posterior\(y\)\) or "
            r"several, got EmbedAndEmulate",
        ),
        (
            lambda: to_arviz(named(model, "chain", "b").posterior(y[0])),
            "names: expected parameters with names of their own, got 'chain'",
        ),
        (
            lambda: to_arviz(named(model, "a", "observation").posteriors(y)),
            "got 'observation', which ArviZ's container uses",
        ),
        (
            lambda: to_arviz(
                [model.posterior(y[0]), model.posterior(y[0], prior=eande.BoxPrior([0, 0], [1, 1]))]
            ),
            "got different priors",
        ),
    ):
        with pytest.raises(eande.InputError, match=message):
            wrong()
    tree = to_arviz(model.posterior(y[0]), samples=50, sampler=eande.resample)
    assert "pareto_k" in tree["sample_stats"].attrs["sampler"][0]
