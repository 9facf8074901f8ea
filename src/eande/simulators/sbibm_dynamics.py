"""The two differential equations of the benchmark sbibm 1.1.0: an epidemic, predators and prey.

    sir                S' = −βSI    I' = βSI − γI
    lotka_volterra     x' = αx − βxy    y' = −γy + δxy

sbibm solves them in Julia, at adaptive steps. Here both are solved by the classical Runge–Kutta
method at fixed steps, all parameters at once. The steps are so short that half of them would move
no noiseless datum by a hundredth of its noise, wherever the prior leads.

sbibm marks simulations whose solver stops early by NaN. Neither system can blow up: S, I and their
sum stay between 0 and 1, and the second system moves on closed curves. So none is marked here.
Both tasks clamp the solution before noise is added, and so does this file.

References:
    Lueckmann, Boelts, Greenberg, Gonçalves and Macke, *Benchmarking Simulation-Based Inference*,
    2021.
"""

from collections.abc import Callable

import numpy as np

# People, of whom one is infected at first; only their shares appear in the equations.
_POPULATION = 1_000_000
# People tested at each time.
_TESTED = 1000
# Days between one observed time and the next, the first being 0.
_EPIDEMIC_DAYS = 17.0
_EPIDEMIC_STEPS = 170
_ANIMALS = (30.0, 1.0)
_ANIMAL_DAYS = 2.1
_ANIMAL_STEPS = 300
_ANIMAL_RANGE = (1e-10, 1e4)
_ANIMAL_NOISE = 0.1
_TIMES = 10


def sir(phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return how many of 1,000 tested people are infected, on days 0, 17, …, 153.

    φ is the contact rate β and the recovery rate γ, per day.
    """
    infected = infected_shares(phi)
    return rng.binomial(_TESTED, infected).astype(np.float64)


def infected_shares(phi: np.ndarray, *, steps: int = _EPIDEMIC_STEPS) -> np.ndarray:
    """Return I at the ten times, shape (n, 10).

    Args:
        phi: (n, 2).
        steps: of the solver, from one time to the next.
    """
    contact, recovery = phi.astype(np.float64).T

    def slope(state: np.ndarray) -> np.ndarray:
        susceptible, infected = state
        new = contact * susceptible * infected
        return np.stack([-new, new - recovery * infected])

    first = 1 / _POPULATION
    start = np.tile([[1 - first], [first]], len(phi))
    infected = _solve(slope, start, _EPIDEMIC_DAYS, steps)[:, 1]
    return infected.T.clip(0, 1)


def lotka_volterra(phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return prey at ten times, days 0, 2.1, …, 18.9, then predators, with 10 % of noise.

    φ is (α, β, γ, δ). The noise is log-normal.
    """
    logs = log_animals(phi)
    return np.exp(logs + _ANIMAL_NOISE * rng.standard_normal(logs.shape))


def log_animals(phi: np.ndarray, *, steps: int = _ANIMAL_STEPS) -> np.ndarray:
    """Return log x at the ten times, then log y, shape (n, 20).

    The logarithms are what is solved for: between two peaks numbers fall by many powers of ten.

    Args:
        phi: (n, 4).
        steps: of the solver, from one time to the next.
    """
    birth, hunted, death, fed = phi.astype(np.float64).T

    def slope(state: np.ndarray) -> np.ndarray:
        prey, predators = np.exp(state)
        return np.stack([birth - hunted * predators, fed * prey - death])

    start = np.tile(np.log(_ANIMALS)[:, np.newaxis], len(phi))
    logs = _solve(slope, start, _ANIMAL_DAYS, steps)
    # (time, kind, n): in y the times of one kind stand together.
    return logs.transpose(2, 1, 0).reshape(len(phi), 2 * _TIMES).clip(*np.log(_ANIMAL_RANGE))


def _solve(
    slope: Callable[[np.ndarray], np.ndarray], state: np.ndarray, interval: float, steps: int
) -> np.ndarray:
    """Return the state at the ten times: it and nine more, at equal intervals."""
    h = interval / steps
    states = [state]
    for _ in range(_TIMES - 1):
        for _ in range(steps):
            k1 = slope(state)
            k2 = slope(state + h / 2 * k1)
            k3 = slope(state + h / 2 * k2)
            k4 = slope(state + h * k3)
            state = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        states.append(state)
    return np.stack(states)
