"""A whole diagnosis: the exact model passes, wrong ones are told what is wrong."""

import math

import numpy as np
import pytest
import torch

import eande
from eande import plots
from eande.diagnostics.diagnose import diagnose
from eande.diagnostics.identifiability import identifiability
from eande.similarities.dot import Dot
from eande.similarities.prior_only import PriorOnly
from eande.simulators.von_mises_fisher import VonMisesFisher
from helpers.models import Function, exact_model
from helpers.sharp_gaussians import box, gaussian


def test_the_exact_model_passes(held_out):
    found = diagnose(exact_model(VonMisesFisher(8, seed=0)), held_out, draws=20_000)
    assert found.passed
    assert "ALARM" not in str(found)
    assert found.data == 400
    assert found.draws == 20_000
    assert diagnose(exact_model(VonMisesFisher(8, seed=0)), held_out, draws=100).draws == 8_000
    assert found.cv_normalizer == pytest.approx(0, abs=0.03)
    assert found.log_ratio > 1
    assert found.pareto_k.max() < 0.7


@pytest.mark.parametrize(
    ("factor", "word"), [(1.8, "too wide: under-confident"), (0.5, "too narrow: over-confident")]
)
def test_a_wrong_temperature_is_seen_and_named(held_out, factor, word):
    found = diagnose(
        exact_model(VonMisesFisher(8, seed=0), temperature=factor / 8), held_out, draws=5_000
    )
    assert not found.passed
    assert word in str(found)


def test_a_model_that_learned_nothing_is_told(held_out):
    model = exact_model(VonMisesFisher(8, seed=0))
    fallen = model.with_similarity(PriorOnly(model.similarity))
    found = diagnose(fallen, held_out, draws=2_000)
    assert "no better than the prior" in str(found)
    assert [verdict.name for verdict in found.verdicts if verdict.passed is False] == ["log ratio"]


def test_too_few_draws_are_told_as_a_ceiling():
    task = VonMisesFisher(100_000, seed=0)
    found = diagnose(
        exact_model(task), eande.simulate(task, task.prior, 20, seed=1, progress=False), draws=400
    )
    assert found.ceiling == pytest.approx(math.log(401))
    assert "all that 400 draws can show" in str(found)


def test_one_datum_of_each_group_is_used(held_out):
    twice = eande.Simulations.from_arrays(
        held_out.phi.repeat(2, 1), held_out.y.repeat(2, 1), groups=torch.arange(400).repeat(2)
    )
    assert diagnose(exact_model(VonMisesFisher(8, seed=0)), twice, draws=500).data == 400


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draws": 10}, "draws: expected a whole number of at least 100, got 10"),
        ({"alarm": 0}, "alarm: expected a number between 0 and 1, got 0"),
        ({"seed": "a"}, "seed: expected a whole number of at least 0, got 'a'"),
        ({"held_out": "x"}, "held_out: expected Simulations"),
        ({"few": True}, "held_out: expected at least 20 different parameters, got 5"),
    ],
)
def test_wrong_arguments_are_told(held_out, options, message):
    data = options.pop("held_out", held_out[:5] if options.pop("few", False) else held_out)
    with pytest.raises(eande.InputError, match=message):
        diagnose(exact_model(VonMisesFisher(8, seed=0)), data, **options)


def draws_only(dimension):
    """The same box, of which nothing but draws is known."""
    known = box(dimension)
    return eande.SamplerPrior(lambda n, seed: known.sample(n, seed=seed), contains=known.contains)


@pytest.mark.parametrize("believed", [0.1, 0.05])
def test_ten_sharp_parameters_are_not_called_calibrated_by_draws_that_miss_them(believed):
    model, simulated = gaussian(draws_only(10), 0.1, believed=believed)
    found = diagnose(model, simulated(100, 0), draws=20_000)
    assert not found.tested
    assert not found.passed
    assert "NOT TESTED" in str(found)
    assert "cover" not in str(found)
    assert all(math.isnan(value) for value in (*found.divergence, *found.shrinkage, *found.z_rms))
    assert "NOT TESTED" in plots.diagnosis(found).get_suptitle()


def test_what_few_draws_show_by_chance_is_no_information():
    model, simulated = gaussian(box(2), 0.005, told=1)
    found = diagnose(model, simulated(100, 0), draws=25_000)
    assert 100 < found.weighed.effective_draws.median() < 400
    assert found.divergence[1] < 0.03
    assert found.divergence[0] > 3


def test_a_constant_parameter_is_neither_learned_nor_nan():
    prior = eande.EmpiricalPrior(
        torch.cat([box(1).sample(3_000, seed=0), torch.full((3_000, 1), 3.3)], 1)
    )
    model, simulated = gaussian(prior, 0.3, told=1)
    found = diagnose(model, simulated(100, 0))
    assert found.divergence[1] < 1e-6
    assert found.shrinkage[1] == 0


def plateau():
    """Return the exact model of y = max(φ, 0) + noise, whose scores are level over half the prior
    but for rounding, and its simulator.
    """
    prior = box(1)
    noise = 0.2
    width = 6
    turn = torch.linalg.qr(torch.randn(width, width, generator=torch.Generator().manual_seed(0)))[0]

    def padded(x):
        return torch.cat([x, torch.zeros(len(x), width - 2)], 1) @ turn

    encoder = Function(
        lambda y: padded(torch.cat([y, torch.full_like(y, -0.5)], 1)) / noise**2 * math.sqrt(width)
    )
    emulator = Function(
        lambda phi: padded(torch.cat([phi.relu() + 0.3, (phi.relu() + 0.3) ** 2], 1))
    )
    model = eande.EmbedAndEmulate(
        encoder, emulator, Dot(width), prior, y_shape=(1,), embedding_dimension=width
    )

    def simulated(count, seed):
        phi = prior.sample(count, seed=1_000 + seed)
        return eande.Simulations.from_arrays(
            phi,
            phi.relu()
            + 0.3
            + noise * torch.randn(phi.shape, generator=torch.Generator().manual_seed(seed)),
        )

    return model, simulated


@pytest.mark.thorough
def test_level_scores_are_ties_in_coverage_and_in_calibration():
    model, simulated = plateau()
    found = [
        diagnose(model, simulated(300, seed), draws=6_000).coverage.p_value for seed in range(4)
    ]
    assert min(found) > 0.01
    _, calibration = eande.calibrate(model, simulated(300, 100), kind="constant")
    assert calibration.exponent == pytest.approx(1, abs=0.2)


def test_parameters_that_are_draws_of_the_prior_count_once():
    alarmed = 0
    for seed in range(20):
        phi = box(2).sample(1_000, seed=seed)
        model, simulated = gaussian(eande.EmpiricalPrior(phi), 0.05)
        alarmed += diagnose(model, simulated(500, seed, phi=phi[-500:])).coverage.p_value < 0.01
    assert alarmed <= 2


def test_an_alarm_is_raised_at_levels_that_shared_draws_cannot_resolve():
    prior = eande.EmpiricalPrior(box(3).sample(1_000, seed=0))
    model, simulated = gaussian(prior, 0.2, shift=2.0)
    found = diagnose(model, simulated(500, 0), alarm=0.0001)
    assert [verdict.passed for verdict in found.verdicts if verdict.name.startswith("ranks")] == [
        False
    ] * 3


def test_what_is_no_model_or_no_pair_is_refused():
    model, simulated = gaussian(box(1), 0.1)
    held_out = simulated(200, 0)
    for function in (diagnose, identifiability, eande.Belongs):
        with pytest.raises(
            eande.InputError,
            match=r"model: expected a fitted model \(from a file: eande.load\(path\)\), got str",
        ):
            function("m.eande", held_out)
    with pytest.raises(
        eande.InputError, match=r"pair: expected the numbers of two of 1 parameters, got \(0, 1\)"
    ):
        plots.ellipses(identifiability(model, held_out))
    with pytest.raises(eande.InputError, match="names: expected 2 different names"):
        plots.corner(np.zeros((5, 2)), names=["a"])
    with pytest.raises(eande.InputError, match="n: expected a whole number of at least 1, got -1"):
        eande.resample(model.posterior(held_out.y[0]), -1)
