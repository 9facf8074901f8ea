"""A model learns where its posteriors lie: samples cost less by it, and are the same."""

import copy
import math
from dataclasses import replace

import pytest
import torch

import eande
from eande.diagnostics.two_sample import c2st
from eande.foundations.checks import InputError
from eande.inference.guide import DataScores, follow_guide
from eande.inference.guide_network import GuideNetwork
from eande.inference.nearby import _CLOSER, find_near
from eande.inference.samplers.guided import GuidedInfo
from eande.similarities.calibrated import Calibrated
from eande.training import guide as guides
from helpers.exact_posteriors import MODE_WEIGHT as WEIGHT
from helpers.exact_posteriors import MODE_WIDTH as WIDTH
from helpers.exact_posteriors import moved_modes
from helpers.sharp_gaussians import box, gaussian

pytestmark = pytest.mark.thorough

NOISE = 0.03
QUICK = eande.FitSettings(
    epochs=5,
    start="linear",
    device="cpu",
    width=32,
    blocks=1,
    similarity=eande.Mixture(4),
    normalizer_draws=1_000,
    batch_size=128,
    validate_every=5,
)


@pytest.fixture(scope="module")
def line():
    """An exact model of three parameters at 9 nats, its guide learned, and its simulator."""
    model, simulated = gaussian(box(3), NOISE)
    return eande.learn_guide(model, simulated(500, 0), progress=False), simulated


@pytest.fixture(scope="module")
def modes():
    """The same with its guide learned, and data."""
    model, simulations = moved_modes(400)
    return eande.learn_guide(model, simulations, progress=False), simulations.y


def test_learned_proposals_are_taken_at_once_and_are_good(line):
    model, simulated = line
    y = simulated(20, 1).y
    infos = [model.posterior(one).sample(500)[1] for one in y]
    assert all(isinstance(info, GuidedInfo) and info.rounds == 0 for info in infos)
    assert torch.tensor([info.effective_share for info in infos]).median() > 0.4
    plain = model.with_guide(None).posterior(y[0])
    assert plain.sample(500)[1].rounds > 0


def test_log_c_and_its_error_are_right(line):
    model, simulated = line
    y = simulated(40, 2).y.double()
    normal = torch.distributions.Normal(0.0, 1.0)
    inside = normal.cdf((1 - y) / NOISE) - normal.cdf((-1 - y) / NOISE)
    whole = math.log(NOISE * math.sqrt(2 * math.pi) / 2)
    exact = (inside.log() + whole + y**2 / (2 * NOISE**2)).sum(1)
    found = [posterior.refine(seed=i) for i, posterior in enumerate(model.posteriors(y))]
    z = torch.tensor(
        [
            (one.log_normalizer - c) / one.normalizer_error
            for one, c in zip(found, exact, strict=True)
        ]
    )
    # Forty numbers: their root mean square is within 0.3 of 1 in 99.5 % of cases.
    assert 0.7 < z.square().mean().sqrt() < 1.3
    assert max(one.normalizer_error for one in found) < 0.03


def test_samples_are_those_without_a_guide(line):
    model, simulated = line
    y = simulated(3, 3).y
    for one in y:
        with_guide, _ = model.posterior(one).sample(2_000, seed=1)
        without, _ = model.with_guide(None).posterior(one).sample(2_000, seed=2)
        assert c2st(with_guide, without) < 0.54


def spoilt(guide, how):
    """A learned guide that is half as wide, shifted, or has lost a mode."""
    mixture = guide.mixture
    components = mixture.components
    if how == "narrow":
        mixture = mixture.widened(0.5)
    elif how == "shifted":
        means = components.means + 4 * components.factors.sum(3)
        mixture = mixture._replace(components=components._replace(means=means))
    else:
        first = (components.means > 0).all(2) + 1e-12
        weights = components.weights * first
        weights = weights / weights.sum(1, keepdim=True)
        mixture = mixture._replace(components=components._replace(weights=weights))
    return guide._replace(mixture=mixture)


class _Spoilt(GuideNetwork):
    """A learned network whose guides are spoilt."""

    def __init__(self, network, how):
        super().__init__(network.settings)
        self.load_state_dict(network.state_dict())
        self.how = how

    def guide(self, features, prior):
        return spoilt(super().guide(features, prior), self.how)


@pytest.mark.parametrize("how", ["narrow", "shifted", "one mode"])
def test_a_spoilt_guide_changes_costs_and_not_results(how, modes):
    model, shift = modes
    worse = model.with_guide(_Spoilt(model.guide, how))
    phi, _ = worse.samples(shift[:20], 1_000, seed=4, progress=False)
    first = (phi - shift[:20].unsqueeze(1)).mean(2) > 0
    # Of 20,000: the standard error is 0.0032.
    assert abs(first.double().mean().item() - WEIGHT) < 0.013
    white = (phi - shift[:20].unsqueeze(1) - torch.where(first, 0.5, -0.5).unsqueeze(2)) / WIDTH
    assert abs(white.std().item() - 1) < 0.02
    alone, info = worse.posterior(shift[0]).sample(4_000)
    weight = ((alone - shift[0]).mean(1) > 0).double().mean().item()
    assert abs(weight - WEIGHT) < 0.03
    kept = model.posterior(shift[0]).sample(4_000)[1]
    assert kept.rounds == 0
    # What it costs is told.
    assert info.rounds > 0 or info.effective_share < 0.8 * kept.effective_share


@pytest.mark.parametrize("dimension", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_what_takes_the_place_of_a_failing_guide_is_as_good_as_without(dimension):
    model, simulated = gaussian(box(dimension), NOISE)
    guided = eande.learn_guide(model, simulated(300, 0), progress=False)
    worse = guided.with_guide(_Spoilt(guided.guide, "shifted"))
    y = simulated(4, 1).y
    shares = []
    for one in (model, worse):
        infos = one.samples(y, 1_000, progress=False)[1]
        infos += [one.posterior(datum).sample(2_000)[1] for datum in y]
        assert all(info.rounds > 0 for info in infos)
        shares.append(torch.tensor([info.effective_share for info in infos]).mean().item())
    assert shares[1] > shares[0] - 0.1


def test_a_guide_of_numbers_that_are_none_is_not_followed(line):
    model, simulated = line
    broken = GuideNetwork(model.guide.settings)
    broken.load_state_dict(model.guide.state_dict())
    broken.location[0] = torch.nan
    y = simulated(3, 5).y
    for one in model.with_guide(broken).summaries(y, progress=False):
        assert (one.mean - y[0]).isfinite().all()
    phi, info = model.with_guide(broken).posterior(y[0]).sample(500)
    assert info.rounds > 0
    assert phi.isfinite().all()


def test_a_lost_mode_is_noticed_by_prior_draws_alone(modes):
    model, shift = modes
    f = model.embed(shift[:8])
    guide = spoilt(model.propose(f), "one mode")
    scores = DataScores(model, f)
    bank = model.prior_bank(model.prior, 10_000)
    given = (bank.phi, model.similarity.score(f, bank.emulated))
    # A tenth of the prior finds the mode in thousands of draws; so few would hardly meet it.
    found = follow_guide(guide, scores, *given, effort=_CLOSER._replace(enough=0.0), seed=0)
    assert found.rounds > 0
    right = follow_guide(
        model.propose(f), scores, *given, effort=_CLOSER._replace(enough=0.0), seed=0
    )
    assert right.rounds == 0


def test_a_calibrated_model_proposes_as_wide_as_its_posteriors(line):
    model, simulated = line
    y = simulated(10, 4).y
    wide = model.with_similarity(Calibrated(model.similarity, 0.25))
    bank = wide.prior_bank(wide.prior, 10_000)
    near = find_near(wide, wide.embed(y), bank, seed=0)
    assert near.found.rounds == 0
    share = near.found.normalizer().effective_draws / near.log_weight.shape[1]
    assert share.median() > 0.4
    phi, _ = wide.posterior(y[0]).sample(2_000)
    assert phi.std(0).tolist() == pytest.approx([2 * NOISE] * 3, rel=0.1)


@pytest.fixture(scope="module")
def fits():
    """Two sharp models of two parameters that files can hold, and their simulations."""
    simulations = line_simulations()
    models = []
    for seed in (0, 1):
        settings = replace(QUICK, epochs=20, seed=seed)
        given = {"settings": settings, "guide": False, "progress": False}
        models.append(eande.fit(simulations, box(2), **given))
    return models, simulations


def test_what_is_learned_stays_with_the_model(fits, tmp_path):
    (model, _), simulations = fits
    guided = eande.learn_guide(model, simulations, progress=False)
    assert model.guide is None
    assert guided.guide is not None
    guided.save(tmp_path / "model.eande")
    loaded = eande.load(tmp_path / "model.eande")
    y = simulations.y[0]
    assert loaded.guide is not None
    assert torch.equal(loaded.posterior(y).guide.log_weight, guided.posterior(y).guide.log_weight)
    # An older file has none.
    model.save(tmp_path / "plain.eande")
    assert eande.load(tmp_path / "plain.eande").guide is None


def test_an_ensemble_proposes_by_its_members_and_by_one_of_its_own(fits, tmp_path):
    (model, other), simulations = fits
    members = [eande.learn_guide(one, simulations, progress=False) for one in (model, other)]
    joint = eande.ensemble(members)
    y = simulations.y[:4]
    assert joint.guide is None
    assert len(joint.propose(joint.embed(y)).mixture.location) == 8
    own = eande.learn_guide(eande.ensemble([model, other]), simulations, progress=False)
    assert len(own.propose(own.embed(y)).mixture.location) == 4
    # Half of a model has nothing to say for all of it.
    assert eande.ensemble([members[0], other]).propose(joint.embed(y)) is None
    for number, one in enumerate((joint, own)):
        one.save(tmp_path / f"{number}.eande")
        loaded = eande.load(tmp_path / f"{number}.eande")
        kept = one.posterior(y[0]).guide.log_weight
        assert torch.equal(loaded.posterior(y[0]).guide.log_weight, kept)
        calibrated = one.with_similarity(Calibrated(one.similarity, 0.5))
        assert calibrated.propose(calibrated.embed(y)) is not None
        held_out = line_simulations(seed=7)[torch.arange(30)]
        # All members score the draws that ranks and calibration need.
        assert eande.diagnose(one, held_out, progress=False).nearer > 0
        assert eande.calibrate(one, held_out, progress=False)[1].after > 0
        copied = copy.deepcopy(one)
        assert torch.equal(copied.posterior(y[0]).guide.log_weight, kept)


def test_a_fit_learns_one_where_prior_draws_are_few_or_it_is_asked_to(tmp_path, monkeypatch):
    simulations = line_simulations()
    given = {"settings": replace(QUICK, epochs=20), "progress": False}
    blunt = eande.fit(line_simulations(noise=0.5), box(2), **given)
    assert blunt.guide is None
    assert eande.fit(line_simulations(noise=0.5), box(2), guide=True, **given).guide is not None
    assert eande.fit(simulations, box(2), guide=False, **given).guide is None
    draws = eande.EmpiricalPrior(simulations.phi)
    with pytest.warns(eande.EandeWarning, match="guide: none was learned, for the prior has no"):
        assert eande.fit(simulations, draws, guide=True, **given).guide is None
    folder = tmp_path / "run"
    sharp = eande.fit(simulations, box(2), checkpoint=folder, **given)
    assert sharp.guide is not None
    # The same call again reads it.
    with monkeypatch.context() as patched:
        patched.setattr(guides, "_learned", None)
        again = eande.fit(simulations, box(2), checkpoint=folder, **given)
    for name, kept in sharp.guide.state_dict().items():
        assert torch.equal(again.guide.state_dict()[name], kept)
    (folder / "guide.safetensors").unlink()
    anew = eande.fit(simulations, box(2), checkpoint=folder, **given)
    for name, kept in sharp.guide.state_dict().items():
        assert torch.equal(anew.guide.state_dict()[name], kept)
    (folder / "guide.safetensors").write_bytes(b"no guide at all")
    with pytest.raises(InputError, match=r"guide\.safetensors: expected an eande guide"):
        eande.fit(simulations, box(2), checkpoint=folder, **given)


def test_further_members_have_a_guide_that_knows_them(tmp_path):
    settings = replace(QUICK, epochs=5)
    given = {"settings": settings, "checkpoint": tmp_path / "run", "progress": False}
    two = eande.fit(line_simulations(), box(2), members=2, **given)
    three = eande.fit(line_simulations(), box(2), members=3, **given)
    width = two.members[0].embedding_dimension
    assert (two.guide.settings.features, three.guide.settings.features) == (2 * width, 3 * width)
    assert three.propose(three.embed(line_simulations().y[:2])) is not None


def test_a_warm_start_begins_without_one(fits):
    (model, _), simulations = fits
    guided = eande.learn_guide(model, simulations, progress=False)
    settings = eande.FitSettings(epochs=1, device="cpu")
    further = eande.fit(
        simulations, warm_start=guided, settings=settings, guide=False, progress=False
    )
    assert further.guide is None


def test_what_has_nothing_to_learn_is_refused(line):
    many, simulated_many = gaussian(box(25), 0.3)
    with pytest.raises(InputError, match="there are more than 24 parameters: 25"):
        eande.learn_guide(many, simulated_many(50, 0))
    model, simulated = line
    draws = eande.EmpiricalPrior(box(3).sample(500, seed=0))
    without, _ = gaussian(draws, NOISE)
    model, simulated = line
    with pytest.raises(InputError, match="the prior has no density"):
        eande.learn_guide(without, simulated(50, 0, phi=draws.sample(50, seed=1)))
    with pytest.raises(InputError, match="simulations: expected at least 20 different parameters"):
        eande.learn_guide(model, simulated(5, 0))
    with pytest.raises(InputError, match="guide: expected one of 3 features for 2 parameters, got"):
        gaussian(box(2), NOISE)[0].with_guide(model.guide)
    with pytest.raises(InputError, match="y: expected shape"):
        eande.learn_guide(
            model, eande.Simulations.from_arrays(torch.zeros(50, 3), torch.zeros(50, 4))
        )


def line_simulations(noise=0.02, seed=0):
    return eande.simulate(
        lambda phi, rng: phi + noise * rng.standard_normal(phi.shape),
        box(2),
        400,
        seed=seed,
        progress=False,
    )
