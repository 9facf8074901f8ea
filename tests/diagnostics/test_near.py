"""Near an observation: exact models pass whatever is proposed there, wrong ones are told."""

import numpy as np
import pytest
import torch

import eande
from eande.diagnostics.uniformity import uniformity
from eande.simulators.von_mises_fisher import VonMisesFisher
from helpers import exact_line
from helpers.models import exact_model
from helpers.sharp_gaussians import box, gaussian

QUICK = {"draws": 4_000, "progress": False}


def noisy(noise):
    """The simulator of y = φ + noise."""

    def simulator(phi, rng):
        return phi + noise * rng.standard_normal(phi.shape)

    return simulator


def believing(elsewhere, model):
    """Return the model with another's posteriors to propose from."""
    model.posterior = elsewhere.posterior
    return model


def ranks(make, repetitions=20):
    """All ranks of many observations of one parameter."""
    found = [
        eande.diagnose_near(make(), [y], noisy(exact_line.NOISE), n=100, seed=seed, **QUICK)
        for seed, y in enumerate(np.linspace(-0.9, 0.9, repetitions))
    ]
    return found, [
        torch.cat([one.weighed.ranks[:, 0] for one in found]),
        *(
            torch.cat([one.weighed.joint_ranks[name] for one in found])
            for name in ("coverage", "TARP")
        ),
    ]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "proposal",
    [
        exact_line.gaussian(),
        exact_line.gaussian(9.0, shift=0.2),
        exact_line.gaussian(0.1, shift=-0.1),
    ],
    ids=["its own", "too narrow and displaced", "too wide and displaced"],
)
def test_ranks_by_an_exact_ratio_are_uniform_whatever_is_proposed(proposal):
    """Two thousand ranks of each kind; each set raises an alarm at most three times in 100."""
    found, together = ranks(lambda: believing(proposal, exact_line.gaussian()))
    assert all(uniformity(each).p_value > 1e-3 for each in together)
    assert sum(not one.passed for one in found) <= 3


@pytest.mark.thorough
def test_ranks_by_a_ratio_too_sharp_are_not_uniform():
    """The sibling: twice the exact log ratio is seen in both kinds."""
    _, (of_parameter, coverage, _) = ranks(lambda: exact_line.gaussian(2.0))
    assert uniformity(coverage).p_value < 1e-3
    assert uniformity(of_parameter).p_value < 1e-3


@pytest.mark.parametrize(("dimension", "noise"), [(1, 0.1), (5, 0.02)])
@pytest.mark.parametrize(("times", "fault"), [(1, ""), (0.5, "too narrow"), (2, "too wide")])
def test_widths_are_told(dimension, noise, times, fault):
    model, _ = gaussian(box(dimension), noise, believed=times * noise)
    found = eande.diagnose_near(model, [0.2] * dimension, noisy(noise), **QUICK)
    coverage = next(verdict for verdict in found.verdicts if verdict.name == "coverage")
    assert found.tested
    assert found.passed == coverage.passed == (not fault)
    assert fault in coverage.text


def test_a_bias_is_told():
    model, _ = gaussian(box(2), 0.1, shift=1.0)
    found = eande.diagnose_near(model, [0.2, 0.2], noisy(0.1), **QUICK)
    assert "posteriors lie too high" in str(found)


def test_what_is_wrong_here_and_right_on_average_is_found_here_alone():
    """A fourteenth of all data lie where the model is twice as sure as it may be."""
    noise = 0.02

    def power(y):
        return torch.where((y - 0.6).abs() < 0.07, 4.0, 1.0)

    model = exact_line.gaussian(power, noise=noise)
    everywhere = eande.diagnose(model, exact_line.pairs(300, 1, noise), progress=False)
    assert everywhere.passed
    here = eande.diagnose_near(model, [0.6], noisy(noise), **QUICK)
    assert not here.passed
    assert "too narrow" in str(here)
    assert eande.diagnose_near(model, [-0.6], noisy(noise), **QUICK).passed


@pytest.mark.parametrize(("factor", "fault"), [(1, None), (0.5, "too narrow"), (2, "too wide")])
def test_a_prior_of_draws_alone_will_do(factor, fault):
    """On a sphere there is no density: regions are those of the highest ratio."""
    task = VonMisesFisher(8, seed=0)
    y = eande.simulate(task, task.prior, 1, seed=3, progress=False).y[0]
    model = exact_model(task, temperature=factor / 8)
    found = eande.diagnose_near(model, y, task, n=300, **QUICK)
    assert found.passed == (fault is None)
    assert fault is None or fault in str(found)


def test_it_says_what_it_looked_at():
    model = exact_line.gaussian()
    text = str(eande.diagnose_near(model, [0.3], noisy(exact_line.NOISE), **QUICK))
    assert "200 near the observation, of parameters from its posterior" in text
    assert "what another datum adds to that posterior" in text
    assert all(word not in text for word in ("prior", "shrinkage", "failed", "held-out"))


def test_a_model_that_knows_nothing_is_no_alarm_here():
    """Posteriors that are the prior are calibrated; diagnose says that they tell nothing."""
    found = eande.diagnose_near(
        exact_line.fallen(exact_line.gaussian()), [0.3], noisy(exact_line.NOISE), **QUICK
    )
    assert found.log_ratio == pytest.approx(0, abs=1e-6)
    assert found.passed


def test_simulations_made_before_serve_as_new_ones():
    model = exact_line.gaussian()
    simulator = noisy(exact_line.NOISE)
    predicted = eande.predict(model.posterior([0.3]), simulator, 200, progress=False)
    again = eande.diagnose_near(model, [0.3], simulations=predicted, **QUICK)
    assert again.verdicts == eande.diagnose_near(model, [0.3], simulator, **QUICK).verdicts
    with pytest.raises(eande.InputError, match="simulator: expected a function"):
        eande.diagnose_near(model, [0.3], **QUICK)


def test_failures_are_counted_and_too_many_refused():
    exact = noisy(exact_line.NOISE)

    def failing(phi, rng):
        return np.where(rng.random((len(phi), 1)) < 0.4, np.nan, exact(phi, rng))

    model = exact_line.gaussian()
    with pytest.warns(eande.EandeWarning, match="failed"):
        found = eande.diagnose_near(model, [0.3], failing, **QUICK)
    assert f"{200 - found.data} of 200 failed" in str(found)
    assert 100 < found.data < 140
    with (
        pytest.warns(eande.EandeWarning, match="failed"),
        pytest.raises(eande.InputError, match="at least 50 of 60 simulations to succeed, got"),
    ):
        eande.diagnose_near(model, [0.3], failing, n=60, **QUICK)
    few = eande.predict(model.posterior([0.3]), exact, 20, progress=False)
    with pytest.raises(eande.InputError, match="simulations: expected at least 50 of 20"):
        eande.diagnose_near(model, [0.3], simulations=few, **QUICK)


def test_views_are_seen():
    """The model reads one number of each simulation, the simulator gives three."""

    def first(y, generator):
        return y[:, :1]

    def three(phi, rng):
        return np.repeat(noisy(exact_line.NOISE)(phi, rng), 3, axis=1)

    found = eande.diagnose_near(exact_line.gaussian(), [0.3], three, views=first, **QUICK)
    assert found.passed
