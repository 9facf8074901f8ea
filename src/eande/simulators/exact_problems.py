"""Small problems of two parameters whose posterior is known, by which a fit is judged.

    Counts          six counts with zeros, two log-normal rates
    Scales          three numbers, parameters of scale 1e6 and 1e-6
    Growth          20 numbers over four decades, a log-normal start and a growth rate
    NormalDraws     100 exchangeable numbers, their mean and log standard deviation
    Autoregression  a series of 500 numbers, its coefficient and log scale
    Oscillation     a series of 64 pairs of numbers, its frequency and damping
    Blob            an image of 24 × 24 numbers, place and height of a blob
    Gaps            four numbers of which any may be missing, two parameters
    Modes           two numbers, eight separated modes of unequal weights
    Nothing         three numbers that say nothing

Each has a ``prior``, ``__call__(phi, rng) -> y`` and the exact

    log r(φ, y) = log p(y | φ) − log ∫ p(y | φ') p(φ') dφ',

its integral a sum over a grid of parameters so fine that its error is far under 0.001 nats. Over
fresh pairs the mean of log r − log r̂ is the mean Kullback–Leibler divergence of the exact
posterior from a model's.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Independent, LogNormal, Normal

from eande.priors.box import BoxPrior
from eande.priors.distribution import DistributionPrior
from eande.priors.prior import Prior

# Numbers of a table of log likelihoods that are in memory at a time.
_NUMBERS_AT_ONCE = 2**24


class ExactProblem(ABC):
    """A problem whose evidence is a sum over a grid.

    Attributes:
        prior: of the parameters, independent of each other.
        axes: the values of each parameter on the grid.
    """

    prior: Prior
    axes: tuple[Tensor, ...]

    @abstractmethod
    def __call__(self, phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Simulate data of parameters (m, 2)."""

    @abstractmethod
    def log_likelihood(self, phi: Tensor, y: Tensor) -> Tensor:
        """Return log p(y | φ) up to a constant in φ.

        Of parameters (k, 2) and data (m, …) all k × m, shape (m, k).
        """

    def log_ratio(self, phi: Tensor, y: Tensor) -> Tensor:
        """Return the exact log r of pairs (m, 2) and (m, …), shape (m,), in float64."""
        grid, log_weights = self.grid()
        together = max(1, _NUMBERS_AT_ONCE // len(grid))
        parts = []
        for pair in zip(phi.double().split(together), y.double().split(together), strict=True):
            evidence = (self.log_likelihood(grid, pair[1]) + log_weights).logsumexp(1)
            own = [self.log_likelihood(p[None], d[None])[0] for p, d in zip(*pair, strict=True)]
            parts.append(torch.cat(own) - evidence)
        return torch.cat(parts)

    def grid(self) -> tuple[Tensor, Tensor]:
        """Return all points of the grid (k, 2), and the log of the prior's mass at each."""
        cells = [torch.gradient(axis)[0] for axis in self.axes]
        grid = torch.cartesian_prod(*self.axes)
        log_cells = torch.cartesian_prod(*cells).log().sum(1)
        log_mass = self.prior.log_prob(grid).double() + log_cells
        # Its sum is one but for the error of the rule at the ends.
        return grid, log_mass - log_mass.logsumexp(0)


def _normal(means: Sequence[float], deviations: Sequence[float]) -> DistributionPrior:
    return DistributionPrior(Independent(Normal(torch.tensor(means), torch.tensor(deviations)), 1))


def _log_normal(means: Sequence[float], deviations: Sequence[float]) -> DistributionPrior:
    law = LogNormal(torch.tensor(means), torch.tensor(deviations))
    return DistributionPrior(Independent(law, 1))


def _line(low: float, high: float, points: int) -> Tensor:
    """Return the midpoints of equal cells."""
    edges = torch.linspace(low, high, points + 1, dtype=torch.float64)
    return (edges[1:] + edges[:-1]) / 2


class Counts(ExactProblem):
    """Poisson counts of two rates, each with three exposures: zeros, and hundreds."""

    def __init__(self) -> None:
        self.prior = _log_normal([0.0, 1.0], [1.5, 1.5])
        self.exposures = torch.tensor([0.3, 1.0, 3.0], dtype=torch.float64)
        self.axes = tuple(_line(centre - 9, centre + 9, 300).exp() for centre in (0.0, 1.0))

    def __call__(self, phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Simulate counts, (m, 6)."""
        rates = phi[:, :, None] * self.exposures.numpy()
        return rng.poisson(rates).reshape(len(phi), 6).astype(np.float32)

    def log_likelihood(self, phi: Tensor, y: Tensor) -> Tensor:
        """Return Σ y log φ − φ Σ exposure."""
        counts = y.unflatten(1, (2, 3)).sum(2)
        return counts @ phi.log().T - self.exposures.sum() * phi.sum(1)


class Gaussian(ExactProblem):
    """A signal of the parameters with independent normal noise of one known size."""

    noise: float

    @abstractmethod
    def signal(self, phi: Tensor) -> Tensor:
        """Return the data without noise, (k, …)."""

    def __call__(self, phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Simulate the signal and noise."""
        signal = self.signal(torch.from_numpy(phi).double()).numpy()
        return (signal + self.noise * rng.standard_normal(signal.shape)).astype(np.float32)

    def log_likelihood(self, phi: Tensor, y: Tensor) -> Tensor:
        """Return −½ |y − signal|² / noise²."""
        signal = self.signal(phi).flatten(1)
        y = y.flatten(1)
        square = (y**2).sum(1, keepdim=True) - 2 * y @ signal.T + (signal**2).sum(1)
        return -square / (2 * self.noise**2)


class Scales(Gaussian):
    """Three numbers of two parameters, one of scale 1e6 and one of 1e-6.

    Args:
        positive: whether both are log-normal; else they are normal.
    """

    noise = 0.3

    def __init__(self, *, positive: bool = False) -> None:
        self.positive = positive
        if positive:
            centres = [math.log(1e6), math.log(1e-6)]
            self.prior = _log_normal(centres, [1.0, 1.0])
            self.axes = tuple(_line(centre - 6, centre + 6, 300).exp() for centre in centres)
        else:
            self.prior = _normal([3e6, 0.0], [1e6, 1e-6])
            self.axes = (_line(-3e6, 9e6, 300), _line(-6e-6, 6e-6, 300))

    def _plain(self, phi: Tensor) -> Tensor:
        """Return the parameters as numbers of mean 0 and standard deviation 1."""
        if self.positive:
            return phi.log() - torch.tensor([1e6, 1e-6], dtype=torch.float64).log()
        return (phi - torch.tensor([3e6, 0.0])) / torch.tensor([1e6, 1e-6], dtype=torch.float64)

    def signal(self, phi: Tensor) -> Tensor:
        """Return three combinations of them, (k, 3)."""
        a, b = self._plain(phi).unbind(1)
        return torch.stack([a, b, a + b], dim=1)

    def __call__(self, phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Simulate them in units of their own, (m, 3); as powers where parameters are positive."""
        y = super().__call__(phi, rng)
        y = np.exp(y) if self.positive else y
        return (y * np.array([1e6, 1e-6, 1.0])).astype(np.float32)

    def log_likelihood(self, phi: Tensor, y: Tensor) -> Tensor:
        """Return that of the numbers before units."""
        y = y / torch.tensor([1e6, 1e-6, 1.0], dtype=torch.float64)
        return super().log_likelihood(phi, y.log() if self.positive else y)


class Growth(Gaussian):
    """A population that grows: log y = log φ₁ + φ₂ t + noise at 20 times.

    Args:
        series: whether data are a series of one channel, (1, 20), instead of a vector.
    """

    noise = 0.5

    def __init__(self, *, series: bool = False) -> None:
        self.prior = _log_normal([0.0, -0.5], [1.0, 0.5])
        self.axes = (_line(-5, 5, 500).exp(), _line(-3, 2, 500).exp())
        self.series = series

    def signal(self, phi: Tensor) -> Tensor:
        """Return log populations."""
        times = torch.linspace(0, 4, 20, dtype=torch.float64)
        found = phi[:, :1].log() + phi[:, 1:] * times
        return found.unsqueeze(1) if self.series else found

    def __call__(self, phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Simulate populations."""
        return np.exp(super().__call__(phi, rng))

    def log_likelihood(self, phi: Tensor, y: Tensor) -> Tensor:
        """Return that of log populations."""
        return super().log_likelihood(phi, y.log())


class Oscillation(Gaussian):
    """A damped oscillation in two channels, a quarter of a period apart, at 64 times."""

    noise = 0.3

    def __init__(self) -> None:
        self.prior = BoxPrior([1, 0], [4, 1], names=["frequency", "damping"])
        self.axes = (_line(1, 4, 400), _line(0, 1, 300))

    def signal(self, phi: Tensor) -> Tensor:
        """Return e^(−φ₂ t) (cos, sin)(φ₁ t), (k, 2, 64)."""
        times = torch.linspace(0, 4, 64, dtype=torch.float64)
        angle = phi[:, :1] * times
        fade = (-phi[:, 1:] * times).exp().unsqueeze(1)
        return fade * torch.stack([angle.cos(), angle.sin()], dim=1)


class Blob(Gaussian):
    """An image of a blob: its place along a line and its height are unknown."""

    noise = 1.0

    def __init__(self) -> None:
        self.prior = BoxPrior([6, 1], [18, 4], names=["place", "height"])
        self.axes = (_line(6, 18, 300), _line(1, 4, 100))

    def signal(self, phi: Tensor) -> Tensor:
        """Return a Gaussian bump of radius 2 on the middle line, (k, 1, 24, 24)."""
        places = torch.arange(24, dtype=torch.float64)
        along = (-((places - phi[:, :1]) ** 2) / 8).exp()
        across = (-((places - 11.5) ** 2) / 8).exp()
        return (phi[:, 1:] * along).view(-1, 1, 1, 24) * across.view(24, 1)


class NormalDraws(ExactProblem):
    """A hundred draws of a normal law: its mean is φ₁, the log of its standard deviation φ₂."""

    number = 100

    def __init__(self) -> None:
        self.prior = _normal([0.0, 0.0], [1.0, 0.5])
        self.axes = (_line(-5, 5, 1_000), _line(-2.5, 2.5, 200))

    def __call__(self, phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Simulate draws, (m, 100)."""
        noise = rng.standard_normal((len(phi), self.number))
        return (phi[:, :1] + np.exp(phi[:, 1:]) * noise).astype(np.float32)

    def log_likelihood(self, phi: Tensor, y: Tensor) -> Tensor:
        """Return the density of all draws, by their mean and variance."""
        means = y.mean(1, keepdim=True)
        variances = y.var(1, correction=0, keepdim=True)
        square = (variances + (means - phi[:, 0]) ** 2) / (2 * phi[:, 1]).exp()
        return -self.number * (phi[:, 1] + square / 2)


class Autoregression(ExactProblem):
    """y_t = φ₁ y_{t−1} + e^{φ₂} noise, begun in its stationary law.

    Args:
        series: whether data are a series of one channel, (1, 500), instead of a vector.
    """

    length = 500

    def __init__(self, *, series: bool = True) -> None:
        self.prior = BoxPrior([-0.9, -1], [0.9, 1], names=["coefficient", "log scale"])
        self.axes = (_line(-0.9, 0.9, 400), _line(-1, 1, 200))
        self.series = series

    def __call__(self, phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Simulate series."""
        noise = np.exp(phi[:, 1:]) * rng.standard_normal((len(phi), self.length))
        y = np.empty_like(noise)
        y[:, 0] = noise[:, 0] / np.sqrt(1 - phi[:, 0] ** 2)
        for t in range(1, self.length):
            y[:, t] = phi[:, 0] * y[:, t - 1] + noise[:, t]
        y = y.astype(np.float32)
        return y[:, None] if self.series else y

    def log_likelihood(self, phi: Tensor, y: Tensor) -> Tensor:
        """Return the density of the first number and of each given the one before."""
        y = y.flatten(1)
        a = phi[:, 0]
        inner = (y[:, 1:-1] ** 2).sum(1, keepdim=True)
        ends = (y[:, :1] ** 2) + (y[:, -1:] ** 2)
        products = (y[:, 1:] * y[:, :-1]).sum(1, keepdim=True)
        square = ends + (1 + a**2) * inner - 2 * a * products
        return (1 - a**2).log() / 2 - self.length * phi[:, 1] - square / (2 * (2 * phi[:, 1]).exp())


class Gaps(Gaussian):
    """Four linear numbers with noise, of which each is missing (NaN) with probability 0.3.

    What is missing says nothing, so that the posterior is that given what is seen.
    """

    noise = 0.5

    def __init__(self) -> None:
        self.prior = _normal([0.0, 0.0], [1.0, 1.0])
        self.axes = (_line(-6, 6, 300), _line(-6, 6, 300))
        angles = torch.arange(4, dtype=torch.float64) * (math.pi / 4)
        self.matrix = torch.stack([angles.cos(), angles.sin()])

    def signal(self, phi: Tensor) -> Tensor:
        """Return φ along four directions, (k, 4)."""
        return phi @ self.matrix

    def __call__(self, phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Simulate numbers and gaps."""
        y = super().__call__(phi, rng)
        y[rng.random(y.shape) < 0.3] = np.nan
        return y

    def log_likelihood(self, phi: Tensor, y: Tensor) -> Tensor:
        """Return −½ |y − signal|² / noise² over what is seen."""
        signal = self.signal(phi)
        seen = (~y.isnan()).double()
        y = y.nan_to_num()
        square = (y**2).sum(1, keepdim=True) - 2 * y @ signal.T + seen @ (signal**2).T
        return -square / (2 * self.noise**2)


class Modes(ExactProblem):
    """A place seen with noise from one of eight points around it, nobody knows from which."""

    noise = 0.25
    radius = 3.0
    number = 8

    def __init__(self) -> None:
        self.prior = _normal([0.0, 0.0], [4.0, 4.0])
        self.axes = (_line(-20, 20, 360), _line(-20, 20, 360))
        angles = torch.arange(self.number, dtype=torch.float64) * (2 * math.pi / self.number)
        self.points = self.radius * torch.stack([angles.cos(), angles.sin()], dim=1)
        shares = torch.arange(1, self.number + 1, dtype=torch.float64)
        self.shares = shares / shares.sum()

    def __call__(self, phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Simulate what is seen, (m, 2)."""
        chosen = rng.choice(self.number, len(phi), p=self.shares.numpy())
        noise = self.noise * rng.standard_normal(phi.shape)
        return (phi + self.points.numpy()[chosen] + noise).astype(np.float32)

    def log_likelihood(self, phi: Tensor, y: Tensor) -> Tensor:
        """Return log Σ_k w_k exp(−½ |y − φ − m_k|² / noise²)."""
        found = torch.full((len(y), len(phi)), -torch.inf, dtype=y.dtype)
        for point, share in zip(self.points, self.shares, strict=True):
            square = torch.cdist(y - point, phi).square()
            found = torch.logaddexp(found, share.log() - square / (2 * self.noise**2))
        return found


class Nothing(ExactProblem):
    """Three numbers of noise."""

    def __init__(self) -> None:
        self.prior = _normal([0.0, 0.0], [1.0, 1.0])
        self.axes = (_line(-6, 6, 100), _line(-6, 6, 100))

    def __call__(self, phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Simulate noise, (m, 3)."""
        return rng.standard_normal((len(phi), 3)).astype(np.float32)

    def log_likelihood(self, phi: Tensor, y: Tensor) -> Tensor:
        """Return 0: the posterior is the prior."""
        return torch.zeros(len(y), len(phi), dtype=y.dtype)


PROBLEMS: dict[str, ExactProblem] = {
    "counts": Counts(),
    "scales": Scales(),
    "positive scales": Scales(positive=True),
    "growth": Growth(),
    "growth series": Growth(series=True),
    "normal draws": NormalDraws(),
    "autoregression": Autoregression(),
    "oscillation": Oscillation(),
    "blob": Blob(),
    "gaps": Gaps(),
    "modes": Modes(),
    "nothing": Nothing(),
}
