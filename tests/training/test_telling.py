"""What tells nothing is turned down or left out where it is most of the data, and only there."""

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal

import eande
from eande.simulation.read.simulations import Simulations
from eande.simulators.exact_problems import PROBLEMS
from eande.training.build import Networks, build_model
from eande.training.settings import FitSettings
from eande.training.telling import Correlations, few_tell, places_tell
from eande.training.validation import HeldOut, held_out_log_ratios

PRIOR = MultivariateNormal(torch.zeros(2), torch.eye(2))


def simulations(number, silent, seed=0):
    """Four numbers of two parameters, one of them by its spread alone, and noise after them."""
    stream = torch.Generator().manual_seed(seed)
    phi = torch.randn(number, 2, generator=stream)
    noise = torch.randn(number, 4 + silent, generator=stream)
    told = torch.stack(
        [
            phi[:, 0] + 0.5 * noise[:, 0],
            phi[:, 1] + 0.5 * noise[:, 1],
            phi.sum(1) + 0.5 * noise[:, 2],
            phi[:, 0].exp() * noise[:, 3],
        ],
        dim=1,
    )
    return Simulations.from_arrays(phi, torch.cat([told, noise[:, 4:]], dim=1))


def test_weights_tell_numbers_from_noise():
    """Also a number that only varies more or less; of 2,000 silent ones hardly any is taken in."""
    given = simulations(1_000, 2_000)
    correlations = Correlations(given.phi)
    for part in given.y[:].split(300):
        correlations.add(part)
    weights = correlations.weights()
    assert (weights[:4] > 0.5).all()
    assert (weights[4:] > 0).sum() <= 3
    assert weights.min() >= 0
    assert weights.max() <= 1


@pytest.mark.parametrize(
    ("told", "silent", "expected"),
    [
        (4, 40, True),
        (4, 5, False),
        (20, 19, False),
        (0, 40, False),
        (40, 0, False),
    ],
)
def test_they_are_turned_down_where_they_are_many_and_the_most(told, silent, expected):
    weights = torch.cat([torch.full((told,), 0.9), torch.zeros(silent)])
    assert few_tell(weights) == expected


@pytest.mark.parametrize(("silent", "share"), [(40, 0.01), (3, 1.0)])
def test_the_encoder_sees_a_hundredth_of_them(silent, share):
    given = simulations(800, silent)
    settings = FitSettings(inputs="telling", width=8).resolved(800)
    model = build_model(given, None, eande.DistributionPrior(PRIOR), settings, Networks(), start=0)
    spread = model.y_standardizer(given.y[:]).std(0)
    assert spread[4:].mean().item() == pytest.approx(share, rel=0.05)
    assert (spread[:4] > 0.5).all()
    # Far out is far out, whatever the encoder sees of it.
    far = given.y[:1].clone()
    far[0, -1] = 1_000
    assert model.y_standardizer.reach(far).item() > 100


def test_numbers_that_never_vary_are_not_counted():
    given = simulations(500, 0)
    correlations = Correlations(given.phi)
    correlations.add(torch.cat([given.y[:], torch.zeros(500, 30)], dim=1))
    assert not few_tell(correlations.weights())


@pytest.mark.parametrize("shape", [(2, 20), (40,)])
def test_only_vectors_have_numbers_to_turn_down(shape):
    given = Simulations.from_arrays(torch.randn(50, 2), torch.randn(50, *shape))
    settings = FitSettings(inputs="telling", max_steps=1)
    encoder = "set" if len(shape) == 1 else None
    with pytest.raises(eande.InputError, match="inputs: expected 'all' for data that are no vec"):
        eande.fit(given, PRIOR, settings=settings, encoder=encoder, progress=False)


def series(name, number, seed=0):
    problem = PROBLEMS[name]
    phi = problem.prior.sample(number, seed=seed)
    y = problem(phi.numpy(), np.random.default_rng(seed))
    return problem.prior, Simulations.from_arrays(phi, y)


@pytest.mark.parametrize(
    ("name", "expected"), [("autoregression", False), ("growth series", True), ("blob", True)]
)
def test_places_tell_something_unless_data_are_alike_everywhere(name, expected):
    prior, given = series(name, 400)
    settings = FitSettings(width=64).resolved(400)
    model = build_model(given, None, prior, settings, Networks(), start=0)
    assert places_tell(model, given, None) == expected


def test_without_places_the_encoder_gets_moments_alone(tmp_path):
    prior, given = series("growth series", 60)
    # One plan, so that the search is one run and its folds.
    plan = {"inputs": "stationary", "start": "random", "repulsion": "encoder"}
    settings = FitSettings(max_steps=20, width=16, **plan)
    model = eande.fit(given, prior, settings=settings, progress=False)
    assert {trial["inputs"] for trial in model.tried} == {"stationary"}
    model.save(tmp_path / "model")
    y = given.y[:3]
    assert torch.equal(eande.load(tmp_path / "model").embed(y), model.embed(y))
    for member in model.members or [model]:
        encoder = member.encoder
        assert encoder.features(y).shape == (3, encoder.moments)


@pytest.mark.parametrize(
    ("shape", "encoder"), [((4,), None), ((4,), "set"), ((1, 4), torch.nn.Flatten())]
)
def test_only_encoders_of_series_and_grids_know_places(shape, encoder):
    given = Simulations.from_arrays(torch.randn(50, 2), torch.randn(50, *shape))
    settings = FitSettings(inputs="stationary", max_steps=1, embedding_dimension=4)
    with pytest.raises(eande.InputError, match="inputs: expected 'all' but for series and grids"):
        eande.fit(given, PRIOR, settings=settings, encoder=encoder, progress=False)


@pytest.mark.slow
def test_a_fit_finds_out_that_it_helps(tmp_path):
    """Two fits of the same simulations; what is chosen is kept in files."""
    given = simulations(300, 150)
    fresh = HeldOut(simulations(400, 150, seed=1), None, 10_000)
    nats = {}
    for inputs in (None, "all"):
        settings = FitSettings(max_steps=1_500, repulsion="encoder", width=64, inputs=inputs)
        model = eande.fit(given, PRIOR, settings=settings, progress=False)
        nats[inputs] = held_out_log_ratios(model, fresh, 0).mean().item()
        tried = {trial["inputs"] for trial in model.tried}
        assert tried == ({"all", "telling"} if inputs is None else {"all"})
        model.save(tmp_path / "model")
        y = given.y[:3]
        assert torch.equal(eande.load(tmp_path / "model").embed(y), model.embed(y))
    assert nats[None] > nats["all"] + 0.1
