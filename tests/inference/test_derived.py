"""Quantities derived from the parameters."""

import math

import pytest
import torch

import eande
from eande.foundations.checks import InputError, UserCodeError
from eande.inference.derived import add_derived
from helpers.exact_posteriors import box_model, linear_gaussian_model

NAMES = ("R0", "period")
PHI = torch.tensor([[3.0, 2.0], [6.0, 3.0], [1.0, 4.0]])


def beta(p):
    return p["R0"] / p["period"]


def test_derived_quantities_are_further_columns():
    names, values = add_derived(NAMES, PHI, {"beta": beta, "rate": lambda p: 1 / p["beta"]})
    assert names == ("R0", "period", "beta", "rate")
    assert torch.equal(values[:, :2], PHI)
    assert values[:, 2].tolist() == [1.5, 2.0, 0.25]
    assert torch.allclose(values[:, 3], torch.tensor([2 / 3, 0.5, 4.0]))
    names, values = add_derived(NAMES, PHI, None)
    assert names == NAMES
    assert torch.equal(values, PHI)


def test_a_function_may_return_an_array_and_cannot_change_the_parameters():
    def greedy(p):
        found = p["R0"].numpy() ** 2
        p["R0"] = p.pop("period")
        return found

    names, values = add_derived(NAMES, PHI, {"square": greedy, "beta": beta})
    assert names == ("R0", "period", "square", "beta")
    assert values[:, 2].tolist() == [9.0, 36.0, 1.0]
    assert values[:, 3].tolist() == [1.5, 2.0, 0.25]


REFUSED = {
    "another shape": (
        {"beta": lambda p: p["R0"].mean()},
        InputError,
        r"^derived 'beta': expected shape \(3,\), got \(\)$",
    ),
    "a column": (
        {"beta": lambda p: p["R0"].unsqueeze(1)},
        InputError,
        r"^derived 'beta': expected shape \(3,\), got \(3, 1\)$",
    ),
    "NaN": (
        {"log": lambda p: (p["R0"] - 2).log()},
        InputError,
        "^derived 'log': expected finite float32 numbers, got 1 NaN or inf, the first at index 2$",
    ),
    "no numbers": (
        {"beta": lambda p: "3"},
        InputError,
        "^derived 'beta': expected numbers in an array or tensor, got str",
    ),
    "an unknown parameter": (
        {"beta": lambda p: p["R1"]},
        UserCodeError,
        r"^derived 'beta': raised KeyError \('R1'\) when called with parameters R0, period;",
    ),
    "a name that exists": (
        {"period": beta},
        InputError,
        "^derived: expected names that no parameter has, got 'period' twice$",
    ),
    "no function": (
        {"beta": 3},
        InputError,
        r"^derived\['beta'\]: expected a function of the parameters by name, got 3$",
    ),
    "no name": ({3: beta}, InputError, "^derived: expected texts of one line"),
    "no mapping": (beta, InputError, "^derived: expected functions by name, got <function beta"),
}


@pytest.mark.parametrize(("derived", "kind", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_derived_is_refused_in_a_line(derived, kind, message):
    with pytest.raises(kind, match=message) as caught:
        add_derived(NAMES, PHI, derived)
    assert "\n" not in str(caught.value)


def test_a_summary_has_a_row_for_each_and_modes_of_the_parameters_alone():
    """y = φ + noise: the posterior of φ is N(μ, σ), that of 3 φ + 1 is N(3 μ + 1, 3 σ).

    10,000 samples, tolerance five standard errors.
    """
    posterior = linear_gaussian_model().posterior([0.3], draws=50_000)
    plain = posterior.summary()
    summary = posterior.summary(derived={"line": lambda p: 3 * p["phi1"] + 1})
    assert summary.names == ("phi1", "line")
    mean, std = 0.3 * 0.8, 0.2**0.5
    assert summary.mean.tolist() == pytest.approx([mean, 3 * mean + 1], abs=15 * std / 100)
    assert summary.std.tolist() == pytest.approx([std, 3 * std], rel=0.04)
    reach = 1.645 * 3 * std
    ends = [summary.lower[1].item(), summary.upper[1].item()]
    assert ends == pytest.approx([3 * mean + 1 - reach, 3 * mean + 1 + reach], abs=0.1)
    assert torch.equal(summary.mean[:1], plain.mean)
    assert [mode.phi.shape for mode in summary.modes] == [(1,)]
    rows = [line.split()[0] for line in str(summary).splitlines()[1:3]]
    assert rows == ["phi1", "line"]


def test_what_is_wrong_is_said_before_samples_are_drawn():
    posterior = box_model().posterior([1.0])
    posterior.default_sampler = lambda *_, **__: pytest.fail("drawn")
    with pytest.raises(eande.InputError, match="derived: expected names that no parameter has"):
        posterior.summary(derived={"a": lambda p: p["b"]})


def test_quantities_may_be_angles():
    phi = torch.tensor([[1.0, 1.0], [-1.0, 0.0]])
    _, values = add_derived(("u", "v"), phi, {"angle": lambda p: torch.atan2(p["v"], p["u"])})
    assert values[:, 2].tolist() == pytest.approx([math.pi / 4, math.pi])
