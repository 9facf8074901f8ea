"""select_by: which score of held-out pairs picks the weights."""

import math
import statistics
from dataclasses import asdict

import pytest
import torch
from torch.distributions import Independent, Normal

from eande.inference.model import EmbedAndEmulate
from eande.priors.distribution import DistributionPrior
from eande.similarities.dot import Dot
from eande.simulation.read.simulations import Simulations
from eande.training.contrastive import ContrastiveTask
from eande.training.validation import HeldOut, HeldOutScore
from helpers.linear_task import BOX, equal
from helpers.models import Function, quick_fit

SCORES = ("log_ratio", "density", "median_density")
PRIOR = DistributionPrior(Independent(Normal(torch.zeros(1), torch.ones(1)), 1))
NOISE = 0.5


def pairs(count, seed):
    phi = PRIOR.sample(count, seed=seed)
    noise = torch.randn(phi.shape, generator=torch.Generator().manual_seed(seed))
    return Simulations.from_arrays(phi, phi + NOISE * noise)


def log_densities(model, held_out, draws):
    """log q̂(φ_i | y_i), one posterior at a time."""
    return [
        model.posterior(y, draws=draws).log_prob(phi.unsqueeze(0)).item()
        for phi, y in zip(held_out.phi, held_out.y[:], strict=True)
    ]


def by_formula(model, held_out, draws=2_000):
    """The three scores of a model, relative to the prior's."""
    log_q = log_densities(model, held_out, draws)
    log_p = [PRIOR.log_prob(phi.unsqueeze(0)).item() for phi in held_out.phi]
    return {
        "log_ratio": statistics.mean(q - p for q, p in zip(log_q, log_p, strict=True)),
        "density": math.log(sum(map(math.exp, log_q)) / sum(map(math.exp, log_p))),
        "median_density": statistics.median(log_q) - statistics.median(log_p),
    }


def watch_candidates(monkeypatch):
    """Return a list that will hold the weights of every validation."""
    candidates = []
    validate = ContrastiveTask.validate

    def watched(task, state):
        weights = state.candidate.state_dict()
        candidates.append({name: x.clone() for name, x in weights.items()})
        return validate(task, state)

    monkeypatch.setattr(ContrastiveTask, "validate", watched)
    return candidates


@pytest.mark.parametrize("selection", SCORES)
def test_the_epoch_of_the_largest_score_is_returned(monkeypatch, selection):
    """Scores of every epoch's weights are computed anew from posteriors, one datum at a time."""
    candidates = watch_candidates(monkeypatch)
    held_out = pairs(41, seed=2)
    model = quick_fit(
        pairs(120, seed=1),
        PRIOR,
        validation=held_out,
        epochs=15,
        validate_every=1,
        ema=None,
        learning_rate=2e-2,
        normalizer_draws=2_000,
        select_by=selection,
    )
    returned = {name: x.clone() for name, x in model.state_dict().items()}
    assert len(candidates) == len(model.history) == 15
    assert min(record["effective_draws"] for record in model.history) >= 100
    scores = []
    for weights, record in zip(candidates, model.history, strict=True):
        model.load_state_dict(weights)
        found = by_formula(model, held_out)
        scores.append(found[selection])
        assert record["score"] == pytest.approx(found[selection], abs=1e-3)
        assert record["held_out_log_ratio"] == pytest.approx(found["log_ratio"], abs=1e-3)
        assert record["held_out_density"] == pytest.approx(found["density"], abs=1e-3)
        assert record["held_out_median_density"] == pytest.approx(found["median_density"], abs=1e-3)
    assert equal(returned, candidates[scores.index(max(scores))])


@pytest.mark.parametrize("selection", SCORES)
def test_every_selection_goes_by_its_own_score(few_simulations, monkeypatch, selection):
    """Each of the three scores is largest in another epoch."""
    best = {"log_ratio": 2, "density": 3, "median_density": 4}
    epochs = []

    def scripted(_held_out, model, **_options):
        epochs.append(len(epochs) + 1)
        scores = {name: 1.0 + (epochs[-1] == epoch) for name, epoch in best.items()}
        return HeldOutScore(**scores, error=0.1, cv_normalizer=0.0, effective_draws=1e4)

    monkeypatch.setattr(HeldOut, "score", scripted)
    candidates = watch_candidates(monkeypatch)
    model = quick_fit(
        few_simulations, BOX, epochs=5, validate_every=1, ema=None, select_by=selection
    )
    assert [record["score"] for record in model.history] == [
        1.0 + (epoch == best[selection]) for epoch in range(1, 6)
    ]
    assert equal(model.state_dict(), candidates[best[selection] - 1])
    assert not equal(model.state_dict(), candidates[-1])


def test_the_last_weights_are_taken_whatever_their_score(few_simulations, monkeypatch):
    candidates = watch_candidates(monkeypatch)
    model = quick_fit(
        few_simulations, BOX, epochs=4, validate_every=1, ema=None, select_by="last", restarts=2
    )
    assert [record["score"] for record in model.history] == [
        record["held_out_log_ratio"] for record in model.history
    ]
    assert equal(model.state_dict(), candidates[-1])
    assert not equal(model.state_dict(), candidates[-2])


def careful_at(good):
    """The exact posterior of y = φ + noise where the datum is good, and the prior elsewhere."""

    def encode(y):
        kept = good(y).to(y) / NOISE**2
        return 2**0.5 * torch.cat([kept * y, -kept / 2], 1)

    return EmbedAndEmulate(
        Function(encode),
        Function(lambda phi: torch.cat([phi, phi.square()], 1)),
        Dot(2),
        PRIOR,
        y_shape=(1,),
        embedding_dimension=2,
    )


def ratio_sum(model, held_out):
    log_q = log_densities(model, held_out, 50_000)
    log_p = [PRIOR.log_prob(phi.unsqueeze(0)).item() for phi in held_out.phi]
    return math.log(sum(math.exp(q - p) for q, p in zip(log_q, log_p, strict=True)))


def test_densities_weigh_pairs_by_the_prior():
    """One model knows the data in the middle of the prior, the other those at its edge.

    Ratios gain more at the edge, where the prior expects little; densities are no larger there than
    elsewhere, and most data lie in the middle.
    """
    data = pairs(400, seed=3)
    held_out = HeldOut(data, None, 50_000)
    middle = careful_at(lambda y: y.abs() < 1.2)
    edge = careful_at(lambda y: y.abs() >= 1.2)
    of_middle, of_edge = (held_out.score(model) for model in (middle, edge))
    assert of_edge.log_ratio > of_middle.log_ratio + 0.1
    assert of_middle.density > of_edge.density + 0.1
    assert of_middle.median_density > of_edge.median_density + 0.1
    for model, found in ((middle, of_middle), (edge, of_edge)):
        expected = by_formula(model, data, draws=50_000)
        for name in SCORES:
            assert getattr(found, name) == pytest.approx(expected[name], abs=1e-3)
    # Sums of ratios, without the prior's density, would have chosen the other.
    ratios = [ratio_sum(model, data) for model in (middle, edge)]
    assert ratios[1] > ratios[0] + 0.5
    # The prior scores 0 by all of them.
    nothing = asdict(held_out.score(careful_at(lambda y: y.abs() < 0)))
    assert [nothing[name] for name in SCORES] == pytest.approx([0, 0, 0], abs=1e-6)
