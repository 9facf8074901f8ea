"""The baselines of the Lorenz 96 study.

The networks and losses of sbi on our embeddings, against sbi itself and what a posterior must
be.
"""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from eande.foundations.checks import InputError
from eande.inference.posterior import Posterior
from eande.inference.samplers.tempered import TemperedInfo
from eande.studies.lorenz96 import baselines
from eande.studies.lorenz96.data import make_data
from eande.studies.lorenz96.ring import draw
from eande.studies.lorenz96.sizes import SIZES
from eande.studies.lorenz96.terms import Terms
from eande.studies.lorenz96.through_sbi import (
    Quiet,
    as_sbi_does,
    load_sbi,
    make_head,
    make_loss,
)

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore"),  # of sbi and what it uses
]
SIZE = replace(SIZES["toy"], fresh=0)
TERMS = Terms(turned=True, looks=2).at(SIZE)


@pytest.fixture(scope="module")
def data():
    return make_data(SIZE, TERMS, 0, "cpu", progress=False)


@pytest.fixture(scope="module", params=baselines.BASELINES)
def model(request, data):
    return baselines.train_baseline(
        request.param, data, SIZE, TERMS, 0, "cpu", steps=4, progress=False, width=32
    )


def test_a_baseline_is_a_normalised_posterior(model, data):
    side = (torch.arange(150) + 0.5) / 150 * 30 - 15
    grid = torch.cartesian_prod(side, side)
    for posterior in model.posteriors(data.test_y[:2], draws=20_000):
        assert type(posterior) is Posterior
        assert type(posterior.scorer) is baselines.BaselineObservation
        assert posterior.bound() is None, "a network has no bound"
        assert posterior.log_ratio(grid).double().exp().mean().item() == pytest.approx(1, abs=0.06)
        samples, _ = posterior.sample(300, seed=1)
        assert samples.shape == (300, 2)
        assert samples.abs().max() <= 15
        assert torch.equal(samples, posterior.sample(300, seed=1)[0])
    assert [record["epoch"] for record in model.history] == [2, 4]
    assert not model.training


def test_a_calibrated_baseline_is_normalised(model, data):
    """p r^β / C: the same networks, at β = 3; a flow's C is found by its own draws."""
    side = (torch.arange(150) + 0.5) / 150 * 30 - 15
    grid = torch.cartesian_prod(side, side)
    given = model.posteriors(data.test_y[:1], draws=20_000)[0].log_ratio(grid).double()
    sharper = model.calibrated(3.0).posteriors(data.test_y[:1], draws=20_000)[0]
    found = sharper.log_ratio(grid).double()
    assert found.exp().mean().item() == pytest.approx(1, abs=0.06)
    exact = 3 * given - (3 * given).exp().mean().log()
    assert (found - exact).abs().max() < 0.1
    assert model.exponent == 1, "the other is a copy"


def test_every_sampler_of_a_posterior_serves_a_baseline(model, data):
    """All of them draw from one law: the mean radius of the ring, up to five standard errors."""
    posterior = model.posteriors(data.test_y[:1], draws=20_000)[0]
    own, _ = posterior.sample(2_000, seed=1)
    radii = [own.norm(dim=1)]
    for sampler in ("importance", "tempered"):
        samples, info = posterior.sample(2_000, seed=2, sampler=sampler)
        assert posterior.prior.contains(samples).all()
        assert isinstance(info, TemperedInfo) == (sampler == "tempered")
        radii.append(samples.norm(dim=1))
    error = 5 * (2 * radii[0].var() / 2_000).sqrt()
    assert (radii[1].mean() - radii[0].mean()).abs() < error
    assert (radii[2].mean() - radii[0].mean()).abs() < error


# That they train at all is seen by ``model`` above.
@pytest.mark.slow
@pytest.mark.parametrize("kind", baselines.BASELINES)
def test_the_common_loop_trains_encoder_and_head(kind, data, monkeypatch):
    """The loss falls, the weights of the best validation are returned, a seed gives one model."""
    tasks = []
    loop = baselines.Loop

    class WatchedLoop(loop):
        def __init__(self, fabric, task, *arguments):
            tasks.append(task)
            super().__init__(fabric, task, *arguments)

    monkeypatch.setattr(baselines, "Loop", WatchedLoop)

    # Nothing turned: the windows are learned the sooner.
    terms = replace(TERMS, turned=False, looks=5)

    def train(seed, steps):
        # 24 simulations are soon learned by heart: the first validation is the best.
        return baselines.train_baseline(
            kind,
            data,
            SIZE,
            terms,
            seed,
            "cpu",
            steps=steps,
            progress=False,
            learning_rate=5e-3,
            width=16,
            ema=0.5,
        )

    model = train(0, 100)
    assert [type(task) for task in tasks] == [baselines.BaselineTask]
    losses = [record["loss"] for record in model.history]
    assert losses[-1] < losses[0] - 0.1
    scores = [record["score"] for record in model.history]
    assert scores == [record["held_out_log_ratio"] for record in model.history]
    assert max(scores) > scores[-1] + 0.1, "the case is not hard enough"
    assert tasks[0].validate(SimpleNamespace(candidate=model)).score == pytest.approx(
        max(scores), abs=1e-4
    )
    first, second, other = (train(seed, 2).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[name], second[name]) for name in first)
    moved = [name for name in first if not torch.equal(first[name], other[name])]
    assert any(name.startswith("encoder.") for name in moved)
    assert any(name.startswith("head.") for name in moved)


def test_flows_of_nflows_are_kept_out_of_cuda_graphs():
    """sbi's names do not tell: its "maf" is one of nflows, its "zuko_maf" is not."""
    found = {
        name: make_head("npe-c", name, 4, 8, {}).capturable for name in ("maf", "zuko_maf", "")
    }
    assert found == {"maf": False, "zuko_maf": True, "": True}
    assert make_head("nre-c", "", 4, 8, {}).capturable


def test_the_datum_is_embedded_once(model, data):
    calls = []
    handle = model.encoder.register_forward_hook(lambda *_: calls.append(1))
    posterior = model.posteriors(data.test_y[:1], draws=1_000)[0]
    posterior.log_ratio(torch.zeros(5_000, 2))
    posterior.sample(100)
    handle.remove()
    assert len(calls) == 1


def test_the_loss_of_nre_c_is_sbis_own():
    """Ours draws the other parameters on the device; averaged over draws it is sbi's loss."""
    sbi = load_sbi()
    torch.manual_seed(0)
    head = make_head("nre-c", "resnet", 4, 16, {})
    embedded = torch.randn(12, 4)
    phi = torch.randn(12, 2)
    ours = make_loss("nre-c", head, classes=3, gamma=0.5)
    trainer = sbi.inference.NRE_C(show_progress_bars=False, tracker=Quiet())
    trainer._neural_net = head.network
    with torch.no_grad():
        mine = torch.stack([ours(embedded, phi) for _ in range(600)])
        theirs = torch.stack(
            [trainer._loss(phi, embedded, num_atoms=4, gamma=0.5) for _ in range(600)]
        )
    error = math.sqrt((mine.var() + theirs.var()).item() / 600)
    assert abs((mine.mean() - theirs.mean()).item()) < 4 * error
    # A loss with another weight is told apart.
    other = make_loss("nre-c", head, classes=3, gamma=0.2)
    with torch.no_grad():
        wrong = torch.stack([other(embedded, phi) for _ in range(600)])
    assert abs((wrong.mean() - theirs.mean()).item()) > 4 * error


def test_what_a_user_of_sbi_does_runs_and_says_what_it_asks_for(data):
    found = as_sbi_does("nre-c", data, SIZE, "cpu", count=8, chunks=(4, 8))
    assert found["bytes_unchunked"] == 8 * 99_000 * 4
    assert found["seconds"] > 0
    assert found["chunk"] in (4, 8)


def test_silly_baselines_get_a_clear_line(data):
    with pytest.raises(InputError, match="kind: expected one of"):
        baselines.train_baseline("magic", data, SIZE, TERMS, 0, "cpu", steps=1, progress=False)
    with pytest.raises(InputError, match="overrides: expected one of"):
        baselines.train_baseline(
            "nre-c", data, SIZE, TERMS, 0, "cpu", steps=1, progress=False, magic=1
        )


def test_the_study_draws_a_flow_by_its_own_sampler(model, data, monkeypatch):
    """And a ratio by rejection among prior draws, as E&E's."""
    drawn = []
    sample = baselines.BaselineObservation.sample_flow

    def watched(observation, *arguments, **options):
        drawn.append(observation)
        return sample(observation, *arguments, **options)

    monkeypatch.setattr(baselines.BaselineObservation, "sample_flow", watched)
    posterior = model.posteriors(data.test_y[:1], draws=2_000)[0]
    samples, _ = draw(posterior, 20, 0)
    assert samples.shape == (20, 2)
    assert bool(drawn) == (model.kind == "npe-c")
