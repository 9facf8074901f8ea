"""An ensemble is sampled by its members: each proposal is scored by one of them."""

import math

import pytest
import torch

import eande
from eande.inference.guide import Guide, MemberScores, batches_of
from eande.inference.samplers.gaussian_mixture import fit_gaussian_mixture
from eande.inference.samplers.guided import GuidedInfo
from eande.similarities.calibrated import Calibrated
from helpers.sharp_gaussians import box, gaussian

DIMENSION = 5
NOISE = 0.05


@pytest.fixture(scope="module")
def apart():
    """Two members that are right about the width and six deviations from each other."""
    first, simulated = gaussian(box(DIMENSION), NOISE)
    second, _ = gaussian(box(DIMENSION), NOISE, shift=6.0)
    # Around the middle of the box.
    y = simulated(20, 0).y[:] / 3
    return eande.ensemble([first, second]), y


def of_second(phi, y):
    """Which samples are the second member's."""
    return ((phi - y).mean(-1) / NOISE).abs() > 3


def test_scores_of_members_make_the_joint_score(apart):
    model, y = apart
    f = model.embed(y[:3])
    scores = MemberScores.of_data(model.similarity, f)
    phi = model.prior.sample(40, seed=0).view(1, 40, DIMENSION)
    each = scores(phi.expand(6, -1, -1)).unflatten(0, (3, 2))
    joint = model.similarity.score(f, model.emulate(phi[0]))
    torch.testing.assert_close(each.logsumexp(1) - math.log(2), joint, rtol=1e-5, atol=1e-3)
    bank = model.prior_bank(model.prior, 40)
    again = scores(bank.phi.expand(6, -1, -1))
    torch.testing.assert_close(scores.of_bank(bank), again, rtol=1e-5, atol=1e-3)
    some = torch.tensor([4, 1])
    torch.testing.assert_close(scores.of(some).of_bank(bank), again[some], rtol=1e-5, atol=1e-3)
    assert MemberScores.of_data(Calibrated(model.similarity, 0.5), f) is None
    assert MemberScores.of_data(model.members[0].similarity, f[:, :7]) is None


def test_members_that_disagree_get_half_of_the_samples_each(apart):
    """The mean over 20 data of a share of 4,000: within 4 errors of ½, and each mode is right.

    Members' weights are known to a tenth each, of which the half is off by a fortieth.
    """
    model, y = apart
    shares, centres, spreads = [], [], []
    for i in range(len(y)):
        phi, info = model.posterior(y[i]).sample(4_000, seed=i)
        assert isinstance(info, GuidedInfo)
        second = of_second(phi, y[i])
        shares.append(second.double().mean())
        first = (phi[~second] - y[i]) / NOISE
        centres.append(first.mean(0))
        spreads.append(first.std(0))
    assert torch.stack(shares).mean().item() == pytest.approx(0.5, abs=4 * 0.04 / 20**0.5)
    assert torch.stack(centres).mean(0).abs().max() < 0.02
    assert (torch.stack(spreads).mean(0) - 1).abs().max() < 0.02


def test_a_member_whose_weight_is_forgotten_is_noticed(apart, monkeypatch):
    """The sibling: without offsets, shares are those of the members' own C."""
    model, y = apart
    shares = type(model.similarity).shares

    def without(similarity, f):
        first, second = shares(similarity, f)
        return [first, second._replace(offset=second.offset + 1)]

    monkeypatch.setattr(type(model.similarity), "shares", without)
    phi, _ = model.posterior(y[0]).sample(4_000, seed=0)
    assert of_second(phi, y[0]).double().mean() == pytest.approx(math.e / (1 + math.e), abs=0.05)


def test_samples_and_summaries_of_many_agree_with_those_of_each(apart):
    model, y = apart
    phi, infos = model.samples(y, 1_000, progress=False)
    assert all(isinstance(info, GuidedInfo) for info in infos)
    share = of_second(phi, y.unsqueeze(1)).double().mean()
    assert share.item() == pytest.approx(0.5, abs=0.04)
    summaries = model.summaries(y, progress=False)
    means = torch.stack([summary.mean for summary in summaries])
    shift = (phi.mean((0, 1)) - y.mean(0)) / NOISE
    found = (means - y).mean(0) / NOISE
    # Half of six deviations either way.
    assert shift.abs().mean().item() == pytest.approx(3, abs=0.25)
    assert found.abs().mean().item() == pytest.approx(3, abs=0.25)


@pytest.mark.thorough
def test_each_proposal_runs_one_emulator(apart):
    model, y = apart
    posterior = model.posterior(y[0])
    rows = []
    handles = [
        member.emulator.register_forward_hook(lambda _, given, __: rows.append(len(given[0])))
        for member in model.members
    ]
    try:
        _, info = posterior.sample(2_000, seed=0)
    finally:
        for handle in handles:
            handle.remove()
    # Rounds in which one member alone is looked at are counted for all.
    assert 0.8 * info.evaluations < sum(rows) <= 1.01 * info.evaluations


def test_another_prior_keeps_inside_the_support_trained_under(apart):
    model, y = apart
    wide = torch.distributions.Independent(
        torch.distributions.Normal(torch.zeros(DIMENSION), 0.15 * torch.ones(DIMENSION)), 1
    )
    posterior = model.posterior(y[0], prior=wide)
    outside = torch.full((2, 3, DIMENSION), 1.5)
    assert (posterior.apart(outside) == -torch.inf).all()
    assert posterior.apart(outside / 10).isfinite().all()
    phi, _ = posterior.sample(2_000, seed=0)
    precision = 1 / NOISE**2 + 1 / 0.15**2
    first = phi[~of_second(phi, y[0] / NOISE**2 / precision)]
    assert first.std(0).mean().item() == pytest.approx(precision**-0.5, rel=0.05)


def test_mixtures_of_several_members_are_made_one():
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(6, 500, 3, generator=stream) * torch.tensor([1.0, 0.1, 5.0])
    x = x + torch.arange(6.0).view(6, 1, 1)
    mixtures = fit_gaussian_mixture(x, 4, stream)
    points = 3 * torch.randn(2, 50, 3, generator=stream)
    each = mixtures.log_prob(points.repeat_interleave(3, 0)).view(2, 3, 50)
    merged = mixtures.merged(3)
    torch.testing.assert_close(
        merged.log_prob(points), each.logsumexp(1) - math.log(3), atol=0.01, rtol=0
    )
    drawn, _ = merged.sample(50_000, stream)
    own, _ = mixtures.sample(50_000, stream)
    own = own.unflatten(0, (2, 3)).flatten(1, 2)
    torch.testing.assert_close(drawn.mean(1), own.mean(1), atol=0.1, rtol=0)
    torch.testing.assert_close(drawn.std(1), own.std(1), atol=0, rtol=0.05)


def test_data_with_guides_and_data_without_are_looked_at_apart():
    stream = torch.Generator().manual_seed(0)
    mixtures = fit_gaussian_mixture(torch.randn(5, 100, 2, generator=stream), 2, stream)
    prior = box(2)
    guides = [
        None if i in (1, 3) else Guide(mixtures.of(torch.tensor([i])), prior) for i in range(5)
    ]
    batches = batches_of(torch.tensor([0, 1, 2, 3, 4]), guides, 2)
    assert [batch.rows.tolist() for batch in batches] == [[1, 3], [0, 2], [4]]
    assert [batch.start is None for batch in batches] == [True, False, False]
    assert torch.equal(batches[1].start.mixture.location, mixtures.location[[0, 2]])
    assert [batch.rows.tolist() for batch in batches_of(torch.tensor([4]), guides, 2)] == [[4]]
