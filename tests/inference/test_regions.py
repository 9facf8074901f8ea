"""Regions of high density: the posterior's own level sets, kept as numbers."""

import copy

import pytest
import torch
from torch import nn

import eande
from eande.foundations.checks import EandeWarning, InputError
from eande.inference.model import edge_share
from eande.inference.regions import ScoreRegion
from eande.priors.truncated import TruncatedPrior
from eande.simulation.store.provenance import describe_prior
from helpers.linear_task import BOX, linear
from helpers.models import quick_fit


@pytest.fixture(scope="module", params=["single", "joint"])
def model(request):
    return request.getfixturevalue("small_model" if request.param == "single" else "joint")


def region_of(model, below=3.0):
    y = torch.tensor([[0.2, -0.3], [-0.6, 0.5]])
    posteriors = model.posteriors(y)
    f = torch.cat([posterior.scorer.f for posterior in posteriors])
    top = torch.stack([posterior.bank_scores().max() for posterior in posteriors])
    return ScoreRegion.of(model, f, top - below), posteriors, top - below


def test_a_region_is_where_the_score_of_any_observation_reaches_its_threshold(model):
    region, posteriors, thresholds = region_of(model)
    phi = model.prior.sample(3_000, seed=3)
    scores = torch.stack([posterior.score(phi) for posterior in posteriors])
    depth = (scores - thresholds.unsqueeze(1)).amax(0)
    assert torch.allclose(region.depth(phi).float(), depth, atol=1e-2)
    clear = depth.abs() > 1e-2
    assert torch.equal(region(phi)[clear], (depth >= 0)[clear])
    assert 0.01 < region(phi).float().mean() < 0.99


def test_a_point_is_on_one_side_whatever_others_it_comes_with(model):
    region, _, _ = region_of(model)
    phi = model.prior.sample(2_000, seed=3)
    at_once = region(phi)
    for size in (1, 7, 333):
        assert torch.equal(torch.cat([region(part) for part in phi.split(size)]), at_once)


def test_a_model_under_a_truncated_prior_is_saved_and_loaded(model, tmp_path):
    region, _, _ = region_of(model)
    prior = TruncatedPrior(model.prior, region, box=[[-1, -1], [0.9, 1]])
    simulations = eande.simulate(linear, prior, 200, seed=0, progress=False)
    truncated = quick_fit(simulations, prior, epochs=2)
    truncated.save(tmp_path / "model.eande")
    again = eande.load(tmp_path / "model.eande")
    assert isinstance(again.prior, TruncatedPrior)
    assert torch.equal(again.prior.sample(300, seed=5), prior.sample(300, seed=5))
    phi = model.prior.sample(1_000, seed=6)
    assert torch.equal(again.prior.contains(phi), prior.contains(phi))
    assert again.prior.log_mass == prior.log_mass


def test_a_damaged_region_is_refused_in_a_line(model):
    region, _, _ = region_of(model)
    described, tensors = region.describe(), region.tensors()
    for name in tensors:
        left = {key: value for key, value in tensors.items() if key != name}
        with pytest.raises(InputError, match=r"region|tensor"):
            ScoreRegion.from_description(described, left)
    with pytest.raises(InputError, match=r"expected tensors of its parts, got 'other', too"):
        ScoreRegion.from_description(described, tensors | {"other": torch.zeros(1)})
    with pytest.raises(InputError, match=r"region: 0\.offset: expected shape"):
        ScoreRegion.from_description(described, tensors | {"0.offset": torch.zeros(7)})


def test_an_emulator_of_the_users_cannot_be_stored(small_model):
    own = copy.deepcopy(small_model)
    own.emulator = nn.Sequential(own.emulator)
    region, _, _ = region_of(own)
    assert region.describe() is None
    assert TruncatedPrior(own.prior, region).describe()["regions"] is None


def test_a_store_tells_regions_apart(small_model):
    near = TruncatedPrior(small_model.prior, region_of(small_model, 3.0)[0])
    far = TruncatedPrior(small_model.prior, region_of(small_model, 3.2)[0])
    assert describe_prior(near) == describe_prior(near)
    assert describe_prior(near) != describe_prior(far)


def test_an_observation_whose_posterior_was_cut_off_is_told():
    prior = TruncatedPrior(BOX, Left())
    simulations = eande.simulate(linear, prior, 1_000, seed=0, progress=False)
    model = quick_fit(simulations, prior, epochs=20, temperature=0.1, embedding_dimension=8)
    inside = model.posterior(torch.tensor([-0.6, 0.2]))
    assert edge_share(inside) < 0.01
    with pytest.warns(EandeWarning, match="lies where that was cut off, at the edge"):
        outside = model.posterior(torch.tensor([0.4, 0.2]))
    assert edge_share(outside) > 0.05


class Left(eande.priors.truncated.Region):
    """The left half, whose depth in nats rises steeply."""

    kind = "left half of a test"

    def depth(self, phi):
        return -20 * phi[:, 0].double()

    def describe(self):
        return {"kind": self.kind}

    def tensors(self):
        return {}

    @classmethod
    def from_description(cls, description, tensors):
        return cls()
