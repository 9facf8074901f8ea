"""Who eats whom, and how fast? Twenty-one years of hare and lynx pelts, 1900 to 1920.

Hares u multiply and are eaten, lynxes v live on hares and die,

    du/dt = (α − β v) u,   dv/dt = (δ u − γ) v,

from u₀ and v₀ in 1900; the pelts of each year are log-normal around u and v with deviations σ_u and
σ_v. Eight parameters, forty-two numbers, as in Carpenter's case study for Stan.
"""

from pathlib import Path

import numpy as np
from torch.distributions import LogNormal

import eande

title = "Hare and lynx, 1900 to 1920"

YEARS = 21
STEPS_PER_YEAR = 20

# Those of the case study, but log-normal where it has normal laws cut off at zero: rates of about 1
# a year, an appetite of about 0.05, 10,000 animals give or take a factor of seven at the beginning,
# scatter of a third give or take the same.
prior = eande.ProductPrior(
    alpha=LogNormal(np.log(0.9), 0.5),
    beta=LogNormal(np.log(0.05), 0.5),
    gamma=LogNormal(np.log(0.9), 0.5),
    delta=LogNormal(np.log(0.05), 0.5),
    u0=LogNormal(np.log(10.0), 1.0),
    v0=LogNormal(np.log(10.0), 1.0),
    sigma_u=LogNormal(-1.0, 1.0),
    sigma_v=LogNormal(-1.0, 1.0),
)

_table = np.loadtxt(Path(__file__).with_name("pelts.csv"), delimiter=",", skiprows=5)
# A row of hares, a row of lynxes; logarithms, in which the scatter is the same everywhere.
observed = np.log(_table[:, 1:].T)


def log_animals(phi: np.ndarray) -> np.ndarray:
    """Return the logarithms of u and v at the beginning of each year, (n, 2, 21).

    Solved in logarithms: populations cannot become negative, and none of the prior's blows up.
    """
    phi = np.asarray(phi, dtype=np.float64)
    alpha, beta, gamma, delta = phi[:, :4].T

    def slope(state: np.ndarray) -> np.ndarray:
        hares, lynxes = np.exp(state)
        return np.stack([alpha - beta * lynxes, delta * hares - gamma])

    step = 1 / STEPS_PER_YEAR
    state = np.log(phi[:, 4:6].T)
    years = [state]
    for _ in range(YEARS - 1):
        for _ in range(STEPS_PER_YEAR):
            first = slope(state)
            second = slope(state + step / 2 * first)
            third = slope(state + step / 2 * second)
            fourth = slope(state + step * third)
            state = state + step / 6 * (first + 2 * second + 2 * third + fourth)
        years.append(state)
    return np.stack(years, axis=-1).swapaxes(0, 1)


def simulator(phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw the logarithms of 21 years of pelts (n, 2, 21) for parameters (n, 8)."""
    mean = log_animals(phi)
    scatter = np.asarray(phi, dtype=np.float64)[:, 6:, None]
    return mean + scatter * rng.standard_normal(mean.shape)


# How long hares and lynxes take from peak to peak, when there are few more or fewer than fit.
derived = {"cycle": lambda values: 2 * np.pi / (values["alpha"] * values["gamma"]) ** 0.5}
# Two rows of a table, not a series of two channels.
encoder = "vector"
n = 5_000
settings = eande.FitSettings(max_steps=3_000)
