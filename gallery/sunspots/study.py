"""What drives the Sun: 260 years of sunspots, and a dynamo that hears itself with a delay.

Field lines are wound up by the Sun's rotation, rise after a while as spots, and their remains make
the field that is wound up next. As one equation, for the strength B of the toroidal field,

    (d/dt + 1/τ)² B(t) = −(N_D / τ²) f(B(t − T)) + σ B_max τ^(−3/2) η(t),
    f(B) = B/4 · (1 + erf(B² − 1)) (1 − erf(B² − B_max²)),

with diffusion in time τ, the delay T (both in years), the dynamo number N_D, white noise η of
strength σ, and sources that are silent where the field is weaker than 1 (no spots rise) or stronger
than B_max (they rise too fast). A sunspot number is B², scattered from month to month with a
variance of w times its mean. There is no likelihood in closed form, and the answer lies in all of
3,120 months: what are τ, T, N_D, σ, B_max and w?

The equation is that of Wilmot-Smith et al., *A time delay model for solar and stellar dynamos*,
2006, with noise as of Albert et al., *Learning summary statistics for Bayesian inference with
autoencoders*, 2022.
"""

from pathlib import Path

import numpy as np
from scipy.special import erf

import eande

title = "Sunspots, 1749 to 2008"

FIRST_YEAR = 1749
YEARS = 260
SPIN_UP = 100
MONTHS = 12

prior = eande.BoxPrior(
    [0.5, 0.5, 1.0, 0.01, 1.0, 1.0],
    [10.0, 10.0, 15.0, 0.3, 15.0, 20.0],
    names=["tau", "delay", "N_D", "sigma", "B_max", "w"],
)


def as_data(numbers: np.ndarray) -> np.ndarray:
    """Return months (…, 3120) as the encoder gets them, (…, 12, 260): a channel a month.

    Square roots, because the scatter of counts grows with their mean; and years along the axis,
    months as channels, so that convolutions over decades are as cheap as over 260 numbers.
    """
    years = np.sqrt(numbers).reshape(*numbers.shape[:-1], YEARS, MONTHS)
    return np.swapaxes(years, -1, -2)


def as_series(y: np.ndarray) -> np.ndarray:
    """Return the sunspot numbers (…, 3120) of data (…, 12, 260)."""
    months = np.swapaxes(np.asarray(y) ** 2, -1, -2)
    return months.reshape(*months.shape[:-2], YEARS * MONTHS)


def source(field: np.ndarray, strongest: np.ndarray) -> np.ndarray:
    """Return f(B): as B between 1 and B_max, nothing outside."""
    squared = field**2
    return field / 4 * (1 + erf(squared - 1)) * (1 - erf(squared - strongest**2))


def toroidal_field(
    phi: np.ndarray, rng: np.random.Generator, *, steps_per_month: int = 1
) -> np.ndarray:
    """Return B at the middle of each month (n, 3120), after a century of spin-up.

    Over a step the delayed source and the noise are constant; what is left, an oscillator at its
    critical damping, is solved exactly.
    """
    tau, delay, number, sigma, strongest, _ = np.asarray(phi, dtype=np.float64).T
    step = 1 / (MONTHS * steps_per_month)
    steps = (SPIN_UP + YEARS) * MONTHS * steps_per_month
    # How many steps ago the source was made, at the middle of a step, between two that are known.
    ago = delay / step - 0.5
    whole = np.floor(ago).astype(int)
    part = ago - whole
    past = whole.max() + 2
    field = np.empty((past + steps, len(tau)))
    field[:past] = strongest
    velocity = np.zeros_like(tau)
    columns = np.arange(len(tau))
    decay = np.exp(-step / tau)
    kick = sigma * strongest / tau**1.5 * np.sqrt(step)
    for now in range(past - 1, past + steps - 1):
        before = field[now - whole, columns]
        heard = before + part * (field[now - whole - 1, columns] - before)
        # Where the field would come to rest under this source.
        rest = -number * source(heard, strongest)
        away = field[now] - rest
        speed = velocity + kick * rng.standard_normal(len(tau))
        field[now + 1] = rest + decay * (away + step * (away / tau + speed))
        velocity = decay * (speed - step / tau * (away / tau + speed))
    return field[past + SPIN_UP * MONTHS * steps_per_month :: steps_per_month].T


def simulator(phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw 260 years of months (n, 12, 260) for parameters (n, 6)."""
    scatter = np.asarray(phi, dtype=np.float64)[:, 5:]
    mean = toroidal_field(phi, rng) ** 2
    return as_data(scatter * rng.standard_gamma(mean / scatter))


def read_months() -> np.ndarray:
    """Return the sunspot numbers, (3120,)."""
    table = np.loadtxt(Path(__file__).with_name("monthly.csv"), delimiter=",", skiprows=6)
    return table[:, 1:].reshape(-1)


observed = as_data(read_months())
# Below 1 what is wound up diffuses away before it is heard again.
derived = {"delay per tau": lambda values: values["delay"] / values["tau"]}
n = 3_000
# Some minutes on two cores; without it, the search goes on for as long as it gains.
settings = eande.FitSettings(max_steps=1_500)
