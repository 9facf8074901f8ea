"""The ten tasks of the benchmark sbibm 1.1.0: priors, simulators, and its reference posteriors.

    two_moons                 2 → 2     two crescents
    gaussian_linear          10 → 10    a Gaussian of known covariance
    gaussian_mixture          2 → 2     a wide and a narrow Gaussian with one mean
    slcp                      5 → 8     simple likelihood, complex posterior: four modes
    bernoulli_glm            10 → 10    sums over the spikes of a generalised linear model
    gaussian_linear_uniform  10 → 10    the Gaussian, with a box as prior
    slcp_distractors          5 → 100   slcp among 92 numbers that say nothing
    bernoulli_glm_raw        10 → 100   the spikes themselves
    sir                       2 → 10    an epidemic (``sbibm_dynamics.py``)
    lotka_volterra            4 → 20    predators and prey (the same file)

Nothing of sbibm is imported: its dependencies are old, and its wheel, which holds the observations
with samples of their exact posteriors, is a zip file.

Reference:
    Lueckmann, Boelts, Greenberg, Gonçalves and Macke, *Benchmarking Simulation-Based Inference*,
    2021.
"""

import bz2
import io
import math
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Independent, LogNormal, MultivariateNormal

from eande.foundations.checks import InputError, check_choice
from eande.priors.box import BoxPrior
from eande.priors.distribution import DistributionPrior
from eande.priors.prior import Prior
from eande.simulators.sbibm_dynamics import lotka_volterra, sir

OBSERVATIONS = range(1, 11)
# On the diagonal of SLCP's covariance, as in sbibm.
_JITTER = 1e-6
# Of gaussian_linear, of the prior and of the noise: sbibm's "scale" is a variance.
_VARIANCE = 0.1
_DISTRACTORS = 92
_COMPONENTS = 20


@dataclass(frozen=True)
class Task:
    """A prior and a simulator ``(phi, rng) -> y``, as :func:`eande.simulate` takes them."""

    prior: Prior
    simulator: Callable[[np.ndarray, np.random.Generator], np.ndarray]


def two_moons(phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a point of a crescent of radius 0.1 beside (−|φ₁ + φ₂|, φ₂ − φ₁)/√2."""
    angle = np.pi * (rng.random(len(phi)) - 0.5)
    radius = 0.1 + 0.01 * rng.standard_normal(len(phi))
    centre = np.stack([-np.abs(phi[:, 0] + phi[:, 1]), phi[:, 1] - phi[:, 0]], axis=1) / np.sqrt(2)
    return np.stack([radius * np.cos(angle) + 0.25, radius * np.sin(angle)], axis=1) + centre


def gaussian_linear(phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return φ with noise of variance 0.1."""
    return phi + np.sqrt(_VARIANCE) * rng.standard_normal(phi.shape)


def gaussian_mixture(phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return φ with noise of standard deviation 1 or 0.1, each half of the time."""
    spread = np.where(rng.random((len(phi), 1)) < 0.5, 1.0, 0.1)
    return phi + spread * rng.standard_normal(phi.shape)


def slcp(phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return four draws of a normal distribution in two dimensions, one after the other.

    Its mean is (φ₁, φ₂), its standard deviations φ₃², φ₄² and its correlation tanh φ₅.
    """
    phi = phi.astype(np.float64)
    first = phi[:, 2] ** 2
    second = phi[:, 3] ** 2
    correlation = np.tanh(phi[:, 4])
    a = np.sqrt(first**2 + _JITTER)
    b = correlation * first * second / a
    c = np.sqrt(second**2 + _JITTER - b**2)
    noise = rng.standard_normal((4, 2, len(phi)))
    x = phi[:, 0] + a * noise[:, 0]
    y = phi[:, 1] + b * noise[:, 0] + c * noise[:, 1]
    points = np.stack([x, y], axis=1)
    return points.reshape(8, len(phi)).T


def slcp_distractors(phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return slcp's eight numbers and 92 of a mixture of twenty t-distributions, shuffled.

    The distributions have two degrees of freedom: no variance.
    """
    centres, factors, order = _distractors()
    informative = slcp(phi, rng)
    component = rng.integers(_COMPONENTS, size=len(phi))
    noise = rng.standard_normal((len(phi), _DISTRACTORS))
    # χ² with two degrees of freedom, divided by two.
    noise /= np.sqrt(rng.standard_exponential((len(phi), 1)))
    for i in range(_COMPONENTS):
        rows = component == i
        noise[rows] = centres[i] + noise[rows] @ factors[i].T
    return np.concatenate([informative, noise], axis=1)[:, order]


@cache
def _distractors() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distractors' centres (20, 92), their factors (20, 92, 92), and the order (100,).

    They are drawn as sbibm drew those in its files, which it stores as pickled objects: these are
    not opened, and hold the same numbers.
    """
    stream = np.random.RandomState(42)
    size = _DISTRACTORS
    centres = np.stack([15 * stream.normal(size=size) for _ in range(_COMPONENTS)])
    factors = []
    for _ in range(_COMPONENTS):
        below = np.tril(stream.normal(size=(size, size)))
        factors.append(3 * (below + np.diag(np.exp(stream.normal(size=size)))))
    return centres, np.stack(factors), stream.permutation(8 + size)


def _design() -> np.ndarray:
    """Return bernoulli_glm's design (100, 10): ones, then a fixed stimulus delayed by 0 to 8 steps.

    The stimulus is sbibm's, hence the old generator.
    """
    stimulus = np.random.RandomState(42).randn(100).astype(np.float32)
    design = np.zeros((100, 10), dtype=np.float32)
    design[:, 0] = 1
    for delay in range(9):
        design[delay:, 1 + delay] = stimulus[: 100 - delay]
    return design


def bernoulli_glm(phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the number of spikes in 100 steps and the spike-triggered sums of the stimulus."""
    return bernoulli_glm_raw(phi, rng) @ _design()


def bernoulli_glm_raw(phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return for each of 100 steps whether there is a spike, 1, or none, 0."""
    rate = 1 / (1 + np.exp(-phi @ _design().T))
    return (rng.random(rate.shape) < rate).astype(np.float32)


def _glm_prior() -> DistributionPrior:
    """Return N(0, 2) for the offset and N(0, (FᵀF)⁻¹) for the filter.

    F = DD + diag √(i/9), with D the first differences.
    """
    difference = np.eye(9) - np.eye(9, k=-1)
    smooth = difference @ difference + np.diag(np.sqrt(np.arange(9) / 9))
    precision = np.zeros((10, 10))
    precision[0, 0] = 0.5
    precision[1:, 1:] = smooth.T @ smooth
    return DistributionPrior(
        MultivariateNormal(torch.zeros(10), precision_matrix=torch.from_numpy(precision).float())
    )


def _log_normal(loc: list[float], scale: list[float]) -> DistributionPrior:
    law = LogNormal(torch.tensor(loc), torch.tensor(scale))
    return DistributionPrior(Independent(law, 1))


def _box(half_width: float, dimension: int) -> BoxPrior:
    return BoxPrior([-half_width] * dimension, [half_width] * dimension)


TASKS = {
    "two_moons": Task(_box(1, 2), two_moons),
    "gaussian_linear": Task(
        DistributionPrior(MultivariateNormal(torch.zeros(10), _VARIANCE * torch.eye(10))),
        gaussian_linear,
    ),
    "gaussian_mixture": Task(_box(10, 2), gaussian_mixture),
    "slcp": Task(_box(3, 5), slcp),
    "bernoulli_glm": Task(_glm_prior(), bernoulli_glm),
    "gaussian_linear_uniform": Task(_box(1, 10), gaussian_linear),
    "slcp_distractors": Task(_box(3, 5), slcp_distractors),
    "bernoulli_glm_raw": Task(_glm_prior(), bernoulli_glm_raw),
    "sir": Task(_log_normal([math.log(0.4), math.log(0.125)], [0.5, 0.2]), sir),
    "lotka_volterra": Task(_log_normal([-0.125, -3.0, -0.125, -3.0], [0.5] * 4), lotka_volterra),
}
# Two tasks are another with other data: their references lie in that one's folder.
_PLACES = {
    "slcp_distractors": ("slcp", "observation_distractors"),
    "bernoulli_glm_raw": ("bernoulli_glm", "observation_raw"),
}


@dataclass(frozen=True)
class Reference:
    """One observation of a task.

    Args:
        observation: y, shape (d,).
        parameters: the φ it was simulated from, (D,).
        samples: of its exact posterior, (10000, D).
    """

    observation: Tensor
    parameters: Tensor
    samples: Tensor


def read_reference(wheel: str | Path, task: str, number: int) -> Reference:
    """Read an observation of a task, numbered from 1 to 10, from the wheel of sbibm 1.1.0."""
    check_choice("task", task, tuple(TASKS))
    place, name = _PLACES.get(task, (task, "observation"))
    folder = f"sbibm/tasks/{place}/files/num_observation_{number}"
    try:
        with zipfile.ZipFile(wheel) as files:
            observation = _numbers(files.read(f"{folder}/{name}.csv"))
            parameters = _numbers(files.read(f"{folder}/true_parameters.csv"))
            packed = files.read(f"{folder}/reference_posterior_samples.csv.bz2")
            samples = _numbers(bz2.decompress(packed))
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise InputError(
            f"wheel: expected the file sbibm-1.1.0-py2.py3-none-any.whl, got {wheel} ({error})"
        ) from None
    return Reference(observation[0], parameters[0], samples)


def _numbers(table: bytes) -> Tensor:
    return torch.from_numpy(
        np.loadtxt(io.BytesIO(table), delimiter=",", skiprows=1, dtype=np.float32, ndmin=2)
    )
