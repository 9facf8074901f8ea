"""Simulators of the tests, in a module that worker processes import in no time."""

import numpy as np


def noisy(phi, rng):
    return phi + 0.1 * rng.standard_normal(phi.shape)


def one(phi, rng):
    return phi + 0.1 * rng.standard_normal(phi.shape)


def fragile(phi, rng):
    if phi[0] > 0.5:
        raise ValueError("too high")
    if phi[0] < -0.8:
        return np.full(2, np.nan)
    if phi[1] > 0.9:
        return np.full(2, np.inf)
    if phi[1] < -0.9:
        return np.zeros(3)
    return one(phi, rng)


def unlucky(phi, rng):
    drawn = rng.random()
    if drawn < 0.1:
        raise ValueError(f"{drawn} for {phi.tolist()}")
    return phi + drawn


def unlucky_batch(phi, rng):
    drawn = rng.random(len(phi))
    if drawn.min() < 0.1:
        raise ValueError(f"{drawn.min()} for {phi[drawn.argmin()].tolist()}")
    return phi + drawn[:, None]
