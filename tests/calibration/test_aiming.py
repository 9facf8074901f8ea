"""Models that err to one side, by a known amount.

Calibration moves them back, and moves nothing else.
"""

import math

import pytest
import torch

import eande
from eande.calibration import calibrate as calibration
from eande.inference.model import EmbedAndEmulate
from eande.similarities.calibrated import move
from eande.similarities.dot import Dot
from eande.similarities.mixture import Mixture
from eande.similarities.similarity import Similarity
from helpers.exact_line import (
    DEVICES,
    LINE,
    NOISE,
    QUICK,
    circle,
    coverage,
    gaussian,
    mean_score,
    pairs,
)
from helpers.models import Function

ASIDE = 0.7 * NOISE
AIMED = QUICK | {"aim": True}


def one_gaussian(shift: float) -> EmbedAndEmulate:
    """``gaussian`` once more, as a mixture of one."""
    similarity = Mixture(1, dimension=2)
    with torch.no_grad():
        similarity.spread.weight.zero_()
        similarity.spread.bias.copy_(torch.tensor([0.0, 0.0, 0.0, -2 * math.log(NOISE)]))
    networks = (
        Function(lambda x, by=by: torch.cat([x + by, torch.zeros_like(x)], 1))
        for by in (shift, 0.0)
    )
    return EmbedAndEmulate(
        *networks, similarity, LINE, y_shape=(1,), embedding_dimension=2
    ).requires_grad_(False)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda shift: gaussian(shift=shift), id="dot"),
        pytest.param(one_gaussian, id="mixture", marks=pytest.mark.slow),
    ],
)
def test_a_shifted_model_is_moved_back(make):
    """The posterior's mean is off by 0.7 of its standard deviation: a quarter of a nat.

    From 300 pairs the shift is known to ±0.06 of one.
    """
    model = make(ASIDE)
    fresh = pairs(1_000, 3)
    before = mean_score(model, fresh)
    exact = mean_score(make(0.0), fresh)
    calibrated, found = eande.calibrate(model, pairs(300, 2), **AIMED)
    assert found.aimed
    assert found.after > found.before + 2 * found.error > found.before
    assert exact - before == pytest.approx(0.7**2 / 2, abs=0.07)
    assert exact - mean_score(calibrated, fresh) < 0.02
    assert mean_score(model, fresh) == before, "the given model stays what it was"
    mean = (calibrated.posterior([0.2], draws=20_000).sample(4_000)[0]).mean().item()
    assert mean == pytest.approx(0.2, abs=0.2 * NOISE)


@pytest.mark.parametrize("device", DEVICES)
def test_it_aims_on_every_device(device):
    model = one_gaussian(ASIDE).to(device)
    calibrated, found = eande.calibrate(model, pairs(100, 2), **AIMED)
    assert found.aimed
    assert calibrated.similarity.turn.device.type == device
    assert calibrated.embed(torch.zeros(1, 1, device=device))[0, 0].item() == pytest.approx(
        ASIDE
    ), "f itself stays what it was"
    samples = calibrated.posterior([0.2], draws=20_000).sample(4_000)[0]
    assert samples.mean().item() == pytest.approx(0.2, abs=0.3 * NOISE)


@pytest.mark.thorough
def test_on_the_sphere_a_turned_model_is_turned_back():
    turned = circle(0.01)
    noise = 0.1
    point = turned.encoder
    turned.encoder = Function(lambda y: point(y + 0.15))
    angle = turned.prior.sample(1_300, seed=5)
    data = eande.Simulations.from_arrays(
        angle, angle + noise * torch.randn(1_300, 1, generator=torch.Generator().manual_seed(5))
    )
    calibrated, found = eande.calibrate(turned, data[:300], **AIMED)
    assert found.aimed
    similarity = calibrated.similarity
    embedded = move(similarity.inner, calibrated.embed(data.y[300:]), similarity.aim)
    torch.testing.assert_close(embedded.norm(dim=1), torch.ones(1_000))
    off = (torch.atan2(embedded[:, 1], embedded[:, 0]) - data.phi[300:, 0]).sin()
    assert off.mean().item() == pytest.approx(0.0, abs=0.02)
    assert off.std().item() == pytest.approx(noise, rel=0.1)


def test_without_it_a_model_stays_where_it_is():
    model = gaussian(shift=ASIDE)
    calibrated, found = eande.calibrate(model, pairs(300, 2), **QUICK)
    assert not found.aimed
    assert getattr(calibrated.similarity, "aim", None) is None
    both = eande.ensemble([gaussian(shift=ASIDE), gaussian(shift=ASIDE)])
    assert not eande.calibrate(both, pairs(300, 2), **AIMED)[1].aimed


@pytest.mark.slow
def test_replicates_count_as_one():
    data = pairs(100, 2)
    rows = torch.arange(100).repeat_interleave(5)
    repeated = eande.Simulations(data.phi[rows], data.y[rows], rows)
    once, found_once = eande.calibrate(gaussian(shift=ASIDE), data, **AIMED)
    often, found_often = eande.calibrate(gaussian(shift=ASIDE), repeated, **AIMED)
    assert (found_once.aimed, found_often.aimed) == (True, True)
    assert torch.allclose(once.similarity.shift, often.similarity.shift, rtol=0.05, atol=0.05)


def test_a_failed_call_leaves_an_aimed_model_as_it_was(monkeypatch):
    data = pairs(100, 2)
    model, _ = eande.calibrate(gaussian(shift=ASIDE), data, **AIMED)
    state = {name: tensor.clone() for name, tensor in model.similarity.state_dict().items()}
    assert "turn" in state

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(calibration, "find_aim", interrupted)
    with pytest.raises(KeyboardInterrupt):
        eande.calibrate(model, data, **AIMED)
    assert all(
        torch.equal(tensor, model.similarity.state_dict()[name]) for name, tensor in state.items()
    )


def test_training_goes_on_from_where_data_were():
    """Training goes on with the similarity that was trained, without the calibration."""
    fitted = one_gaussian(ASIDE)
    model, _ = eande.calibrate(fitted, pairs(100, 2), **AIMED)
    assert model.similarity.aim is not None
    settings = eande.FitSettings(
        similarity=Mixture(1), embedding_dimension=2, epochs=1, learning_rate=1e-8, device="cpu"
    )
    further = eande.fit(pairs(100, 3), LINE, warm_start=model, settings=settings, progress=False)
    assert type(further.similarity.trained) is Mixture
    assert type(further.similarity) is Mixture
    torch.testing.assert_close(
        further.similarity.spread.bias, fitted.similarity.spread.bias, rtol=0, atol=1e-5
    )


def test_embeddings_that_are_not_finite_are_named():
    model = gaussian()
    encoder = model.encoder
    model.encoder = Function(lambda y: torch.where(y > 0.5, torch.nan, encoder(y)))
    with pytest.raises(
        eande.InputError, match=r"embeddings of y\[0:100\]: expected finite float32 numbers"
    ):
        eande.calibrate(model, pairs(100, 2), **AIMED)


def test_a_similarity_of_ones_own_is_not_moved_unless_it_says_so():
    class Own(Dot):
        movable = False

    assert not Similarity.movable, "nobody is moved who says nothing"
    model = gaussian(shift=ASIDE)
    model.similarity = Own(2)
    assert not eande.calibrate(model, pairs(300, 2), **AIMED)[1].aimed


@pytest.mark.thorough
def test_chance_moves_nothing():
    """Twenty features of pure noise.

    Any fit to 60 pairs finds use for them, none of them helps pairs it has not seen.
    """

    def encoder(y):
        noise = torch.randn(
            len(y), 20, generator=torch.Generator().manual_seed(int(1e6 * y[0].abs()))
        )
        return torch.cat([gaussian().encoder(y), 30 * noise], 1)

    def emulator(phi):
        return torch.cat([gaussian().emulator(phi), torch.zeros(len(phi), 20)], 1)

    aimed = 0
    for seed in range(4):
        model = EmbedAndEmulate(
            Function(encoder),
            Function(emulator),
            gaussian().similarity,
            LINE,
            y_shape=(1,),
            embedding_dimension=22,
        )
        aimed += eande.calibrate(model, pairs(60, 50 + seed), **AIMED)[1].aimed
    assert aimed == 0


@pytest.mark.slow
@pytest.mark.thorough
def test_aiming_does_not_make_a_model_overconfident():
    """Ten times 100 held-out pairs of a shifted model.

    Its 95 % regions cover nearly as often as the exact ones, and more often than before.
    """
    fresh = pairs(2_000, 999)
    before = coverage(gaussian(shift=ASIDE), fresh)
    exact = coverage(gaussian(), fresh)
    after = []
    for repetition in range(10):
        held_out = pairs(100, 1_000 + repetition)
        calibrated, _ = eande.calibrate(gaussian(shift=ASIDE), held_out, **AIMED)
        after.append(coverage(calibrated, fresh))
    assert sum(after) / len(after) >= exact - 0.01
    assert min(after) >= exact - 0.05
    assert before < exact - 0.04


def test_a_model_that_is_left_alone_has_no_trace_of_it():
    model = circle(0.02)
    angle = model.prior.sample(200, seed=1)
    noisy = eande.Simulations.from_arrays(
        angle, angle + 0.02**0.5 * torch.randn(200, 1, generator=torch.Generator().manual_seed(1))
    )
    similarity = model.similarity
    calibrated, found = eande.calibrate(model, noisy, **AIMED)
    assert not found.aimed
    assert calibrated is model
    assert model.similarity is similarity
    assert set(model.similarity.state_dict()) == {"log_temperature"}
