"""Candidates: the quick score sees over-confidence, however sharp a posterior is."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from eande.inference.candidates import Candidates, propose_candidates
from eande.priors.box import BoxPrior
from eande.priors.convert import as_prior

DIMENSION = 10
PRIOR = as_prior(MultivariateNormal(torch.zeros(DIMENSION), torch.eye(DIMENSION)))


class Gaussian:
    """y = φ + noise with a standard normal prior, and posteriors of a wrong width in its place.

    Args:
        nats: mutual information of φ and y.
        seed: of the pairs.
        pairs: how many.
    """

    def __init__(self, nats, seed, pairs=300):
        variance = 1 / (math.exp(2 * nats / DIMENSION) - 1)
        stream = torch.Generator().manual_seed(seed)
        self.phi = torch.randn(pairs, DIMENSION, generator=stream)
        noise = torch.randn(pairs, DIMENSION, generator=stream)
        self.mean = (self.phi + variance**0.5 * noise) / (1 + variance)
        self.variance = variance / (1 + variance)

    def scores(self, width):
        def scores(phi):
            square = (phi - self.mean.unsqueeze(1)).square().sum(2)
            return phi.square().sum(2) / 2 - square / (2 * self.variance * width**2)

        return scores

    def exact(self, width):
        """Mean log ratio of a posterior of that width."""
        variance = self.variance * width**2
        square = (self.phi - self.mean).square().sum(1)
        log_ratio = self.phi.square().sum(1) / 2 - square / (2 * variance)
        return log_ratio.mean().item() - DIMENSION / 2 * math.log(variance)


def quick(task, candidates, width):
    return candidates.log_ratio(task.scores(width)(candidates.phi)).mean().item()


def by_prior_draws(task, width, draws=1_000):
    drawn = PRIOR.sample(draws, seed=1)
    scores = task.scores(width)(torch.cat([task.phi.unsqueeze(1), drawn.expand(300, -1, -1)], 1))
    return Candidates(drawn, torch.zeros_like(scores)).log_ratio(scores).mean().item()


def wins(nats, sets, score):
    """In how many sets of 300 pairs the exact width beats one 1.5 × narrower and wider."""
    narrow = 0
    wide = 0
    for seed in range(sets):
        task = Gaussian(nats, seed)
        by_width = score(task)
        narrow += by_width(1.0) > by_width(1 / 1.5)
        wide += by_width(1.0) > by_width(1.5)
    return narrow, wide


def by_candidates(task):
    candidates = propose_candidates(task.scores(1.0), PRIOR, task.phi, 32, seed=0)
    return lambda width: quick(task, candidates, width)


@pytest.mark.thorough
@pytest.mark.parametrize("nats", [3, 7, 11, 15])
def test_the_exact_width_wins_at_any_sharpness(nats):
    """Ten parameters, three sets here and a hundred under the marker slow."""
    assert wins(nats, 3, by_candidates) == (3, 3)


@pytest.mark.slow
@pytest.mark.parametrize("nats", [3, 7, 11, 15])
def test_the_exact_width_wins_in_95_of_100_sets(nats):
    assert min(wins(nats, 100, by_candidates)) >= 95


@pytest.mark.thorough
def test_prior_draws_alone_do_not_see_a_sharp_posterior_too_narrow():
    """The sibling: what candidates of their own are for."""
    task = Gaussian(15, 0)
    assert by_prior_draws(task, 1.0) - by_prior_draws(task, 1 / 1.5) < 0.05
    assert task.exact(1.0) - task.exact(1 / 1.5) > 1.5


@pytest.mark.thorough
@pytest.mark.parametrize(("nats", "bias"), [(3, 0.1), (7, 0.15), (11, 0.25)])
def test_the_score_is_the_log_ratio_and_a_little_less(nats, bias):
    task = Gaussian(nats, 0, pairs=100)
    candidates = propose_candidates(task.scores(1.0), PRIOR, task.phi, 128, seed=0)
    assert -bias < quick(task, candidates, 1.0) - task.exact(1.0) < 0.05


def test_candidates_adapted_to_a_wrong_posterior_still_find_the_right_one():
    task = Gaussian(7, 0, pairs=100)
    candidates = propose_candidates(task.scores(1.5), PRIOR, task.phi, 128, seed=0)
    scores = {width: quick(task, candidates, width) for width in (1 / 1.5, 1.0, 1.5)}
    assert max(scores, key=scores.get) == 1.0


def test_two_modes_in_a_box_both_get_candidates():
    """Posteriors at ±0.5 of a box, of width 0.02."""
    box = BoxPrior([-1.0, -1.0], [1.0, 1.0])
    centre = torch.tensor([0.5, 0.5])

    def scores(phi):
        modes = torch.stack([(phi - centre).square().sum(2), (phi + centre).square().sum(2)])
        return torch.logsumexp(-modes / (2 * 0.02**2), 0).expand(10, -1)

    phi = centre + 0.02 * torch.randn(10, 2, generator=torch.Generator().manual_seed(0))
    found = propose_candidates(scores, box, phi, 64, seed=0)
    assert box.contains(found.phi.flatten(0, 1)).all()
    shares = (found.phi[:, 1:].sum(2) > 0).float().mean(1)
    assert ((shares > 0.02) & (shares < 0.98)).all()
    # C = ∫ p e^s = 2 · 2π 0.02² / 4
    log_c = math.log(math.pi * 0.02**2)
    expected = scores(found.phi)[:, 0] - log_c
    errors = found.log_ratio(scores(found.phi)) - expected
    assert errors.mean().abs() < 0.3
    assert errors.abs().max() < 1
    assert found.log_weight[:, 0].max() < 0, "the proposal is narrower than the prior"


def test_the_same_seed_proposes_the_same():
    task = Gaussian(3, 0, pairs=20)
    first, second, other = (
        propose_candidates(task.scores(1.0), PRIOR, task.phi, 16, seed=seed) for seed in (0, 0, 1)
    )
    assert torch.equal(first.phi, second.phi)
    assert torch.equal(first.log_weight, second.log_weight)
    assert not torch.equal(first.phi, other.phi)
    assert torch.equal(first.phi[:, 0], task.phi), "the true ones come first"
