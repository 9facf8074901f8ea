"""How contagious was the influenza that ran through a boarding school in January 1978?

Of 763 boys so many were in bed on each of fourteen days. The model is the textbook's: every boy is
susceptible, infectious (and then in bed) or recovered,

    dS/dt = −β S I / N,   dI/dt = β S I / N − I / D,   β = R₀ / D,

one boy is infectious on 21 January, nothing else is random but the counts: negative binomial around
I(t), with variance I + I² / k. What is asked: R₀, the period D for which a boy infects others, and
the scatter k.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.distributions import LogNormal

import eande

title = "Influenza in a boarding school, 1978"

BOYS = 763
DAYS = 14
STEPS_PER_DAY = 20

# 95 % of the mass: R0 from 1.1 to 8 (seasonal influenza 1.3, measles 15), the period from 0.75 to
# 5.3 days (boys who are put to bed infect fewer), k from 1.4 to 71: scatter of 84 % down to 12 %.
prior = eande.ProductPrior(
    R0=LogNormal(np.log(3.0), 0.5),
    period=LogNormal(np.log(2.0), 0.5),
    k=LogNormal(np.log(10.0), 1.0),
)

_table = Path(__file__).with_name("in_bed.csv")
counts = np.loadtxt(_table, delimiter=",", skiprows=5, usecols=1)
observed = np.log1p(counts)


def in_bed(r0: np.ndarray, period: np.ndarray) -> np.ndarray:
    """Return the model's number of infectious boys at the end of each day (n, 14)."""
    infecting = r0 / period / BOYS
    recovering = 1 / period

    def slope(state: np.ndarray) -> np.ndarray:
        infections = infecting * state[0] * state[1]
        return np.stack([-infections, infections - recovering * state[1]])

    step = 1 / STEPS_PER_DAY
    state = np.stack([np.full_like(r0, BOYS - 1), np.ones_like(r0)])
    days = []
    for _ in range(DAYS):
        for _ in range(STEPS_PER_DAY):
            first = slope(state)
            second = slope(state + step / 2 * first)
            third = slope(state + step / 2 * second)
            fourth = slope(state + step * third)
            state = state + step / 6 * (first + 2 * second + 2 * third + fourth)
        days.append(state[1])
    return np.stack(days, axis=1)


def simulator(phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw the fourteen days (n, 14) for parameters (n, 3), as log(1 + count).

    In logarithms the scatter of large counts is the same everywhere, about 1/√k: so it is easier to
    learn.
    """
    r0, period, k = np.asarray(phi, dtype=np.float64).T
    k = k[:, None]
    # A negative binomial is a Poisson law whose mean is gamma distributed.
    counts = rng.poisson(in_bed(r0, period) * rng.standard_gamma(k, (len(r0), DAYS)) / k)
    return np.log1p(counts)


def attack_rate(values: dict[str, Tensor]) -> Tensor:
    """Return the share of boys that are ever infected: z = 1 − exp(−R₀ z)."""
    share = torch.ones_like(values["R0"])
    for _ in range(200):
        share = 1 - torch.exp(-values["R0"] * share)
    return share


derived = {"beta": lambda values: values["R0"] / values["period"], "attack rate": attack_rate}
# Simulations are cheap here, and k, the scatter around a curve to be learned first, needs many.
n = 60_000
