"""Names of parameters go with the simulations, from what they were made of to the posterior."""

import numpy as np
import pandas
import pytest
import torch
from torch.distributions import Independent, Normal

import eande
from eande.foundations.checks import InputError
from eande.inference.model import EmbedAndEmulate
from eande.priors.box import BoxPrior
from eande.priors.convert import named_as
from eande.priors.distribution import DistributionPrior
from eande.priors.draws import EmpiricalPrior, SamplerPrior
from eande.priors.product import ProductPrior
from eande.similarities.cosine import Cosine
from eande.simulation.read.simulations import Simulations
from eande.training.prepare import training_prior
from helpers.exact_posteriors import box_model
from helpers.models import Function, quick_fit

NAMES = ("R0", "period")
BOX = BoxPrior([0, 0], [1, 1], names=NAMES)
UNNAMED = {
    "box": BoxPrior([0, 0], [1, 1]),
    "distribution": DistributionPrior(Independent(Normal(torch.zeros(2), torch.ones(2)), 1)),
    "sampler": SamplerPrior(lambda n, seed: np.random.default_rng(seed).random((n, 2))),
    "draws": EmpiricalPrior(torch.rand(50, 2)),
}


def simulate(phi, rng):
    return np.repeat(phi, 2, axis=1)


def test_a_data_frame_names_its_parameters():
    frame = pandas.DataFrame({"R0": [1.0, 2.0, 3.0], "period": [4, 5, 6]})
    simulations = Simulations.from_arrays(frame, np.ones((3, 4)))
    assert simulations.names == NAMES
    assert simulations.phi.tolist() == [[1, 4], [2, 5], [3, 6]]
    assert Simulations.from_arrays(frame.to_numpy(), np.ones((3, 4))).names is None
    with pytest.raises(InputError, match="phi: expected numbers in the column 'kind'"):
        Simulations.from_arrays(frame.assign(kind="wet"), np.ones((3, 4)))


def test_simulations_have_the_names_of_their_prior(tmp_path):
    in_memory = eande.simulate(simulate, BOX, 6, progress=False)
    store = tmp_path / "store"
    stored = eande.simulate(simulate, BOX, 6, store=store, progress=False)
    for simulations in (in_memory, stored, Simulations.open(store)):
        assert simulations.names == NAMES
    for prior in UNNAMED.values():
        assert eande.simulate(simulate, prior, 6, progress=False).names is None
    nameless = tmp_path / "nameless"
    eande.simulate(simulate, UNNAMED["box"], 6, store=nameless, progress=False)
    assert Simulations.open(nameless).names is None


def test_names_survive_all_that_is_done_with_simulations(tmp_path):
    eande.simulate(simulate, BOX, 20, store=tmp_path / "store", progress=False)
    whole = Simulations.open(tmp_path / "store")
    large, small = whole.split(0.3)
    for part in (whole[2:5], whole[[1, 2]], large, small, whole.in_memory(), small.in_memory()):
        assert part.names == NAMES
    assert repr(whole) == "Simulations(20 of R0, period and data of shape (4,))"
    assert repr(whole[[0]]).startswith("Simulations(1 of R0")
    unnamed = Simulations.from_arrays(np.zeros((4, 2)), np.ones((4, 3)))
    assert repr(unnamed) == "Simulations(4 of 2 parameters and data of shape (3,))"


def test_names_do_not_change_what_simulations_are():
    phi, y = torch.rand(5, 2), torch.rand(5, 3)
    groups = torch.arange(5)
    named = Simulations(phi, y, groups, names=NAMES)
    assert named.fingerprint() == Simulations(phi, y, groups).fingerprint()
    with pytest.raises(InputError, match="names: expected 2 different names"):
        Simulations(phi, y, groups, names=["a"])


@pytest.mark.parametrize("kind", UNNAMED)
def test_a_prior_without_names_takes_those_of_the_simulations(kind):
    prior = UNNAMED[kind]
    simulations = Simulations(prior.sample(400, seed=1), torch.zeros(400, 1), torch.arange(400))
    assert training_prior(prior, simulations, None) is prior
    simulations.names = NAMES
    found = training_prior(prior, simulations, None)
    assert found.names == NAMES
    assert type(found) is type(prior)
    assert torch.equal(found.sample(20, seed=3), prior.sample(20, seed=3))
    assert all(name in repr(found) for name in NAMES)
    assert prior.names == ("phi1", "phi2"), "the prior that was given is left as it is"
    assert found.describe()["names"] == list(NAMES)


def test_without_a_prior_the_simulations_name_the_parameters():
    simulations = Simulations(torch.rand(40, 2), torch.rand(40, 3), torch.arange(40), names=NAMES)
    assert training_prior(None, simulations, None).names == NAMES
    simulations.names = None
    assert training_prior(None, simulations, None).names == ("phi1", "phi2")


def test_names_of_its_own_stay_but_not_in_another_order():
    simulations = Simulations(BOX.sample(99, seed=0), torch.zeros(99, 1), torch.arange(99))
    simulations.names = ("a", "b")
    assert training_prior(BOX, simulations, None) is BOX
    simulations.names = ("period", "R0")
    with pytest.raises(
        InputError, match=r"^prior: expected its parameters in the order period, R0, got R0, perio"
    ):
        training_prior(BOX, simulations, None)
    product = ProductPrior(period=(0, 1), R0=(0, 1))
    with pytest.raises(InputError, match=r"^prior: expected its parameters in the order R0, per"):
        named_as(product, NAMES)
    phi1 = ProductPrior(phi1=(0, 1), phi2=(0, 2))
    assert repr(named_as(phi1, NAMES)) == "ProductPrior(R0=(0, 1), period=(0, 2))"


def test_another_prior_without_names_takes_those_of_the_training():
    model = box_model(names=NAMES)
    other = BoxPrior([-2, -2], [2, 2])
    posterior = model.posterior([1.0], prior=other, draws=1_000)
    assert posterior.prior.names == NAMES
    assert posterior.summary(samples=100).names == NAMES
    assert other.names == ("phi1", "phi2")
    assert posterior.bank is model.posterior([0.5], prior=other, draws=1_000).bank, "made once"
    own = BoxPrior([-2, -2], [2, 2], names=["u", "v"])
    assert model.posterior([1.0], prior=own, draws=1_000).prior is own
    with pytest.raises(InputError, match="expected its parameters in the order R0, period"):
        model.posterior([1.0], prior=BoxPrior([-2, -2], [2, 2], names=NAMES[::-1]))


def test_predicted_data_have_the_names_of_the_posterior():
    posterior = box_model(names=NAMES).posterior([1.0], draws=1_000)
    predicted = eande.predict(posterior, simulate, 20, progress=False)
    assert predicted.names == NAMES
    assert predicted[:5].names == NAMES


def test_a_prior_that_a_file_cannot_hold_gets_its_names_back(tmp_path):
    prior = UNNAMED["sampler"]
    model = EmbedAndEmulate(
        Function(lambda y: y),
        Function(lambda phi: phi),
        Cosine(0.5),
        named_as(prior, NAMES),
        y_shape=(2,),
        embedding_dimension=2,
    )
    model.save(tmp_path / "model.eande")
    loaded = eande.load(
        tmp_path / "model.eande", encoder=model.encoder, emulator=model.emulator, prior=prior
    )
    assert loaded.prior.names == NAMES


@pytest.mark.thorough
def test_a_model_of_files_speaks_of_their_parameters(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(150):
        a, b = rng.random(2)
        np.savez(tmp_path / f"{i:03d}.npz", R0=a, period=b, y=[a - b, a + b])
    simulations = Simulations.from_files(tmp_path, phi=["R0", "period"], progress=False)
    model = quick_fit(simulations, None, epochs=3)
    assert model.prior.names == NAMES
    model.save(tmp_path / "model.eande")
    assert eande.load(tmp_path / "model.eande").prior.names == NAMES
