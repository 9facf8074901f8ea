"""The search for a schedule: what it tries, when it ends, and that it can be resumed."""

import itertools
import math

import pytest
import torch
from torch.distributions import MultivariateNormal

import eande
from eande.foundations.checks import EandeWarning, InputError
from eande.inference.model import EmbedAndEmulate
from eande.similarities.prior_only import PriorOnly
from eande.simulation.read.simulations import Simulations
from eande.training.search import Plan, Trial, choose_together, find_schedule, folds
from eande.training.validation import HeldOut, held_out_log_ratios

PRIOR = MultivariateNormal(torch.zeros(2), torch.eye(2))
MIX = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, -1.0], [0.5, 2.0]])
NOISE = 0.5
# Of y = Aφ + 0.5 ε: half the log determinant of 1 + AᵀA/0.25.
INFORMATION = 2.98
PLANS = [Plan(*names) for names in itertools.product(("linear", "random"), ("encoder", "both"))]


def simulations(number, seed=0):
    stream = torch.Generator().manual_seed(seed)
    phi = torch.randn(number, 2, generator=stream)
    return Simulations.from_arrays(
        phi, phi @ MIX.T + NOISE * torch.randn(number, 5, generator=stream)
    )


def scripted(score):
    """Return a run whose score is given, and the list of runs that it will have made."""
    made = []

    def run(plan, steps):
        made.append((plan, steps))
        return Trial(*plan, steps, score(plan, steps), 0.1, steps)

    return run, made


def test_the_better_half_goes_on_three_times_as_long_while_it_gains():
    gains = {300: 0.0, 900: 1.0, 2_700: 2.0, 8_100: 2.0}
    run, made = scripted(lambda plan, steps: -PLANS.index(plan) / 10 + gains[steps])
    found = find_schedule(run, PLANS, 300, budget=100_000, most=100_000)
    lengths = [(PLANS.index(plan), steps) for plan, steps in made]
    assert lengths == [
        *((number, 300) for number in range(4)),
        (0, 900),
        (1, 900),
        (0, 2_700),
        (0, 8_100),
    ]
    assert found.best.steps == 2_700
    assert "8100 steps were no better" in found.reason


def test_a_plan_that_leads_late_is_taken():
    scores = {("random", "both", "all", 900): 3.0}
    run, _ = scripted(lambda plan, steps: scores.get((*plan, steps), plan.start == "random"))
    assert find_schedule(run, PLANS, 300, budget=3_000, most=3_000).best.plan == Plan(
        "random", "both"
    )


@pytest.mark.parametrize(("budget", "longest"), [(0, 300), (2_999, 300), (3_000, 900)])
def test_no_run_begins_that_the_budget_does_not_cover(budget, longest):
    run, made = scripted(lambda plan, steps: float(steps))
    found = find_schedule(run, PLANS, 300, budget, most=budget)
    assert max(steps for _, steps in made) == longest == found.best.steps
    assert "steps are spent" in found.reason


def test_a_start_that_no_step_improves_on_is_not_run_for_longer():
    """Others that still gain are, whatever stands above them."""
    scores = {300: 2.45, 900: 2.48, 2_700: 2.48}

    def run(plan, steps):
        if plan.start == "linear":
            return Trial(*plan, steps, 2.5, 0.1, 0)
        made.append(steps)
        return Trial(*plan, steps, scores[steps], 0.1, steps)

    made = []
    plans = [Plan("linear", "both"), Plan("random", "both")]
    found = find_schedule(run, plans, 300, 10_000, 10_000)
    assert made == [300, 900, 2_700]
    assert found.best.plan == plans[0]
    assert len(found.trials) == 4
    alone = find_schedule(run, plans[:1], 300, 10_000, 10_000)
    assert (len(alone.trials), alone.reason) == (1, "no step improved on the best start")


@pytest.mark.parametrize(("gain", "longest"), [(0.2, 900), (0.4, 2_700)])
def test_runs_that_gain_much_may_exceed_the_budget(gain, longest):
    run, _ = scripted(lambda plan, steps: gain * steps / 600)
    found = find_schedule(run, PLANS[:1], 300, budget=1_200, most=4_000)
    assert found.best.steps == longest
    assert found.reason.startswith(f"{300 + 900 + (2_700 if longest == 2_700 else 0)} of")


def test_a_plan_that_diverges_loses():
    def run(plan, steps):
        if plan.start == "random":
            return None
        return Trial(*plan, steps, float(steps), 0.1, steps)

    found = find_schedule(run, PLANS, 300, 3_000, 3_000)
    assert {trial.start for trial in found.trials} == {"linear"}
    assert find_schedule(lambda plan, steps: None, PLANS, 300, 3_000, 3_000).trials == []


@pytest.mark.thorough
def test_where_all_diverge_it_is_said():
    settings = eande.FitSettings(max_steps=1, learning_rate=1e30, gradient_clip=None, width=8)
    with pytest.raises(RuntimeError, match="diverged"):
        eande.fit(simulations(60), PRIOR, progress=False, settings=settings)


def test_runs_that_err_in_different_places_are_taken_together():
    """Log ratios of three models on four pairs, and what their mean ratio has."""
    first = torch.tensor([2.0, 2.0, -1.0, 1.0])
    second = torch.tensor([-1.0, 1.0, 2.0, 1.5])
    copy_of_first = first - 0.01
    assert choose_together([second, first, copy_of_first], 3) == [1, 0]
    assert choose_together([second, first, copy_of_first], 1) == [1]
    assert choose_together([first, copy_of_first], 3) == [0], "no gain, no further member"


def test_folds_hold_out_every_group_once():
    groups = torch.arange(60) // 3
    whole = Simulations(torch.randn(60, 2), torch.randn(60, 4), groups)
    parts = folds(whole, seed=0)
    assert len(parts) == 5
    held_out = torch.cat([part.held_out.groups.unique() for part in parts])
    assert sorted(held_out.tolist()) == list(range(20))
    for part in parts:
        assert len(part.train) + len(part.held_out) == 60
        assert not torch.isin(part.train.groups, part.held_out.groups).any()


def nats(model, held_out):
    return held_out_log_ratios(model, HeldOut(held_out, None, 10_000), seed=0).mean().item()


@pytest.mark.thorough
def test_fifty_simulations_suffice_for_a_linear_problem():
    """Nothing but defaults; 2.98 nats are there, a run of 2,000 steps ends below zero."""
    model = eande.fit(simulations(50), PRIOR, progress=False)
    assert len(model.members) == 5
    assert nats(model, simulations(300, seed=9)) > 2.3
    assert len(model.tried) >= 3, "linear and random starts, by both repulsions or one"


@pytest.mark.slow
def test_data_that_say_nothing_give_the_prior():
    stream = torch.Generator().manual_seed(0)
    phi = torch.randn(400, 2, generator=stream)
    noise = Simulations.from_arrays(phi, torch.randn(400, 3, generator=stream))
    settings = eande.FitSettings(max_steps=1, width=32)
    with pytest.warns(EandeWarning, match="no better than the prior"):
        model = eande.fit(noise, PRIOR, progress=False, settings=settings)
    assert isinstance(model.similarity, PriorOnly)


class Stopped(Exception):
    """A run that ends in the middle."""


def stopping_after(count):
    seen = []

    def callback(record):
        seen.append(record)
        if len(seen) == count:
            raise Stopped

    return callback


@pytest.mark.parametrize(
    "moments",
    [
        pytest.param((3, 6, 9), marks=pytest.mark.thorough),
        pytest.param((12, 5), marks=pytest.mark.slow),
    ],
)
def test_a_search_that_is_stopped_goes_on_to_the_same_model(tmp_path, moments):
    settings = eande.FitSettings(
        max_steps=400, start="linear", repulsion="encoder", width=32, checkpoint_seconds=0.0
    )
    given = simulations(60)
    whole = eande.fit(given, PRIOR, progress=False, settings=settings)
    options = {"checkpoint": tmp_path, "progress": False, "settings": settings}
    for count in moments:
        with pytest.raises((Stopped, RuntimeError)):
            eande.fit(given, PRIOR, callback=stopping_after(count), **options)
    resumed = eande.fit(given, PRIOR, **options)
    assert resumed.tried == whole.tried
    pairs = zip(resumed.state_dict().values(), whole.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    # Runs that lost leave no file, and a finished search is not repeated, nor is what was learned.
    names = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert len(names) == 1 + 5 + 1
    seen = []
    again = eande.fit(given, PRIOR, callback=seen.append, **options)
    assert seen == []
    assert again.tried == whole.tried
    with pytest.raises(InputError, match="this very fit"):
        eande.fit(simulations(60, seed=5), PRIOR, **options)


@pytest.mark.thorough
def test_what_is_given_is_not_searched(tmp_path):
    settings = eande.FitSettings(max_steps=1, repulsion="both", similarity="cosine")
    records = []
    model = eande.fit(
        simulations(60),
        PRIOR,
        progress=False,
        settings=settings,
        validation=0.2,
        callback=records.append,
    )
    assert {record["run"] for record in records} == {0}
    assert [record["step"] for record in records][:3] == [0, 20, 40]
    assert [(trial["start"], trial["repulsion"]) for trial in model.tried] == [("random", "both")]
    assert not model.members, "one split was asked for"
    model.save(tmp_path / "model.eande")
    assert eande.load(tmp_path / "model.eande").tried == model.tried


class Bare(torch.nn.Module):
    """An encoder whose weights nobody can draw anew."""

    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.linspace(-1, 1, 5 * 16).view(5, 16))

    def forward(self, y):
        return y @ self.weights


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_an_encoder_of_ones_own_begins_as_it_is_in_every_fold():
    settings = eande.FitSettings(max_steps=1, repulsion="both", width=16, learning_rate=1e-12)
    model = eande.fit(simulations(60), PRIOR, encoder=Bare(), settings=settings, progress=False)
    assert len(model.members) == 5
    for member in model.members:
        assert torch.allclose(member.encoder.weights, Bare().weights, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_a_search_for_one_model_is_not_that_for_several(tmp_path):
    settings = eande.FitSettings(max_steps=1, repulsion="both", start="linear", width=16)
    options = {"checkpoint": tmp_path, "settings": settings, "progress": False}
    eande.fit(simulations(60), PRIOR, **options)
    with pytest.raises(InputError, match="this very fit"):
        eande.fit(simulations(60), PRIOR, members=3, **options)


def test_pairs_that_compare_come_from_everywhere_and_count_groups_once():
    groups = torch.arange(300).repeat_interleave(4)
    pairs = Simulations(torch.arange(1_200.0).view(-1, 1), torch.zeros(1_200, 1), groups)
    some = HeldOut(pairs, None, 10).some(50).simulations
    assert len(some) == len(some.groups.unique()) == 50
    assert some.phi.min() == 0
    assert some.phi.max() > 1_190
    all_of_them = HeldOut(pairs[:8:4], None, 10)
    assert all_of_them.some(50) is all_of_them


def test_a_prior_without_density_does_not_reward_sharpness():
    """The score of a spike that no draw meets is that of the draws' number, not its own."""
    prior = eande.SamplerPrior(
        lambda n, seed: torch.rand(n, 6, generator=torch.Generator().manual_seed(seed))
    )
    model = EmbedAndEmulate(
        torch.nn.Identity(),
        torch.nn.Identity(),
        eande.Mixture(1, temperature=1e-6, dimension=6),
        prior,
        y_shape=(6,),
        embedding_dimension=6,
    )
    with torch.no_grad():
        model.similarity.spread.weight.zero_()
        model.similarity.spread.bias.zero_()
    phi = torch.rand(20, 6)
    held_out = HeldOut(Simulations.from_arrays(phi, phi), None, 1_000)
    found = held_out_log_ratios(model, held_out, 0)
    assert found.max().item() <= math.log(1_001) + 1e-6
