"""Rounds on a linear problem whose posterior is known, by fits of a second."""

import json
import warnings
from dataclasses import asdict

import numpy as np
import torch

import eande
from eande.foundations.seeds import generator
from eande.simulation.read.sources import digest

MATRIX = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
NOISE = 0.2
BOX = eande.BoxPrior([-2, -2], [2, 2], names=["a", "b"])
# It starts as a ridge regression, which is nearly the answer.
SETTINGS = eande.FitSettings(
    similarity=eande.Mixture(heads=2),
    embedding_dimension=4,
    epochs=12,
    start="linear",
    width=32,
    blocks=1,
    device="cpu",
    # At every chance.
    checkpoint_seconds=0.0,
)


def simulator(phi, rng):
    """Three linear numbers with noise."""
    return phi @ MATRIX.T + NOISE * rng.standard_normal((len(phi), 3))


def observe(phi, seed=0):
    """One observation of these parameters."""
    return simulator(np.array([phi], dtype=float), np.random.default_rng(seed))[0]


def exact_posterior(y):
    """Mean and covariance of the posterior, which the box hardly cuts off."""
    covariance = np.linalg.inv(MATRIX.T @ MATRIX / NOISE**2)
    return covariance @ MATRIX.T @ np.asarray(y) / NOISE**2, covariance


def exact_samples(y, n, seed=0):
    """Samples of the exact posterior, inside the box."""
    mean, covariance = (torch.as_tensor(one).float() for one in exact_posterior(y))
    draws = torch.randn(2 * n, 2, generator=generator(seed, "exact"))
    phi = mean + draws @ torch.linalg.cholesky(covariance).T
    return phi[BOX.contains(phi)][:n]


def make(y, **options):
    """Make rounds by fits of a second."""
    given = {"simulations": 900, "rounds": 3, "settings": SETTINGS, "progress": False}
    return eande.rounds(
        options.pop("simulator", simulator), options.pop("prior", BOX), y, **(given | options)
    )


def fingerprint(model, info):
    """What rounds came to, to the bit: weights, prior, samples and table."""
    y = torch.zeros(model.y_shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples, _ = model.posterior(y).sample(50, seed=3)
    weights = [x for _, x in sorted(model.state_dict().items())]
    table = [asdict(one) | {"seconds_simulating": 0, "seconds_fitting": 0} for one in info.rounds]
    return {
        "weights": digest(*weights),
        "prior": digest(model.prior.sample(200, seed=4)),
        "samples": digest(samples),
        "table": json.loads(json.dumps(table)),
        "stopped": info.stopped,
    }
