"""The synthetic task of the paper: its latent space is a sphere, its posterior known exactly.

    φ : Aφ uniform on the unit sphere S^{d−1},    z ~ von Mises–Fisher(κ, Aφ),    y = MLP(z)

The MLP is invertible (five square layers, leaky ReLU between them), so f(y) = MLP⁻¹(y) = z is a
sufficient statistic and

    p(φ | y) ∝ p(φ) e^{κ f(y)·Aφ}.

With ``redundant=True`` a parameter φ_R ~ U(0, 1) that does nothing comes first.

The prior's support is an ellipsoid, so it has no density in R^d: it is given by its draws, and the
posterior by its ratio to the prior.

References:
    Jiang, Lu and Willett, *Embed and Emulate*, Section 5.1; Zimmermann et al., *Contrastive
    Learning Inverts the Data Generating Process*, 2021; Wood, *Simulation of the von Mises Fisher
    distribution*, 1994.
"""

import numpy as np
import torch
from scipy import special
from torch import Tensor

from eande.foundations.checks import check_count, check_positive
from eande.foundations.seeds import derive_seed, generator
from eande.priors.draws import SamplerPrior

_LAYERS = 5
_SLOPE = 0.2
# Of a layer. At 4 and more the data collapse to a line, on which no float32 network can tell points
# apart.
_LARGEST_CONDITION = 1.6


class VonMisesFisher:
    """The simulator, with its prior, its exact embeddings and its exact posterior.

    Args:
        kappa: concentration κ of the latent noise.
        dimension: d, of the latent sphere's space and of y.
        redundant: whether a parameter without effect comes first.
        seed: chooses the weights of the MLP.

    Example:
        >>> task = VonMisesFisher(kappa=2)
        >>> phi = task.prior.sample(4, seed=0)
        >>> task(phi.numpy(), np.random.default_rng(0)).shape
        (4, 2)
    """

    def __init__(
        self, kappa: float, *, dimension: int = 2, redundant: bool = False, seed: int = 0
    ) -> None:
        check_positive("kappa", kappa)
        check_count("dimension", dimension, 2)
        self.kappa = float(kappa)
        self.dimension = dimension
        self.redundant = redundant
        self.seed = seed
        self.matrix = _parameter_matrix(dimension)
        rng = np.random.default_rng(derive_seed(seed, "mlp"))
        self._weights = _well_conditioned(rng, dimension)
        names = [f"phi{i + 1}" for i in range(dimension)]
        self.prior = SamplerPrior(
            self._draw_prior,
            names=["phi_R", *names] if redundant else names,
            contains=self._contains,
        )

    def _draw_prior(self, n: int, seed: int) -> Tensor:
        stream = generator(seed, "von Mises-Fisher prior")
        direction = torch.randn(n, self.dimension, generator=stream, dtype=torch.float64)
        on_sphere = direction / direction.norm(dim=1, keepdim=True)
        phi = on_sphere @ torch.as_tensor(np.linalg.inv(self.matrix)).T
        if not self.redundant:
            return phi
        redundant = torch.rand(n, 1, generator=stream, dtype=torch.float64)
        return torch.cat([redundant, phi], dim=1)

    def _contains(self, phi: Tensor) -> Tensor:
        on_ellipsoid = (self.true_emulator(phi).norm(dim=1) - 1).abs() < 1e-4
        if not self.redundant:
            return on_ellipsoid
        return on_ellipsoid & (phi[:, 0] >= 0) & (phi[:, 0] <= 1)

    def __call__(self, phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Simulate one datum (d,) for each row of ``phi``."""
        centre = self.true_emulator(torch.as_tensor(phi, dtype=torch.float64)).numpy()
        return self.decode(sample_von_mises_fisher(centre, self.kappa, rng)).astype(np.float32)

    def decode(self, z: np.ndarray) -> np.ndarray:
        """Return y = MLP(z)."""
        for i, weight in enumerate(self._weights):
            z = z @ weight.T
            if i < _LAYERS - 1:
                z = np.where(z > 0, z, _SLOPE * z)
        return z

    def true_encoder(self, y: Tensor) -> Tensor:
        """Return f(y) = MLP⁻¹(y), the exact embedding of data."""
        z = y.double()
        for i, weight in reversed(list(enumerate(self._weights))):
            if i < _LAYERS - 1:
                z = torch.where(z > 0, z, z / _SLOPE)
            z = torch.linalg.solve(torch.as_tensor(weight, device=z.device), z.T).T
        return z.to(y.dtype)

    def true_emulator(self, phi: Tensor) -> Tensor:
        """Return g(φ) = Aφ, the exact embedding of parameters."""
        matrix = torch.as_tensor(self.matrix, dtype=phi.dtype, device=phi.device)
        return phi[:, -self.dimension :] @ matrix.T

    def log_ratio(self, phi: Tensor, y: Tensor) -> Tensor:
        """Return the exact log p(φ|y)/p(φ), float64.

        Args:
            phi: parameters (k, D).
            y: data (m, d).

        Returns:
            One number for every pair, (m, k).
        """
        scores = self.kappa * self.true_encoder(y.double()) @ self.true_emulator(phi.double()).T
        return scores - log_mean_exp_on_sphere(self.kappa, self.dimension)

    def sample_posterior(self, y: Tensor, n: int, *, seed: int) -> Tensor:
        """Draw from the exact posterior of one datum (d,).

        It is von Mises–Fisher around f(y), mapped back by A⁻¹.
        """
        rng = np.random.default_rng(derive_seed(seed, "exact posterior"))
        centre = self.true_encoder(y.cpu().double().unsqueeze(0)).numpy().repeat(n, 0)
        phi = sample_von_mises_fisher(centre, self.kappa, rng) @ np.linalg.inv(self.matrix).T
        if self.redundant:
            phi = np.concatenate([rng.random((n, 1)), phi], axis=1)
        return torch.as_tensor(phi, dtype=torch.float32)

    def information(self) -> float:
        """Return the mutual information I(φ, y) = κ E[z·g] − log E[e^{κ z·g}] in nats."""
        order = self.dimension / 2
        mean_cosine = special.ive(order, self.kappa) / special.ive(order - 1, self.kappa)
        return float(self.kappa * mean_cosine - log_mean_exp_on_sphere(self.kappa, self.dimension))


def log_mean_exp_on_sphere(kappa: float, dimension: int) -> float:
    """Return the log of the mean of e^{κ z·g} over z uniform on the unit sphere of R^d."""
    order = dimension / 2 - 1
    log_bessel = np.log(special.ive(order, kappa)) + kappa
    return float(special.gammaln(dimension / 2) + order * np.log(2 / kappa) + log_bessel)


def sample_von_mises_fisher(
    centre: np.ndarray, kappa: float, rng: np.random.Generator
) -> np.ndarray:
    """Draw one point around each row of ``centre`` (n, d).

    By Wood's rejection sampler for the cosine, and a uniform tangent direction.
    """
    n, dimension = centre.shape
    b = (dimension - 1) / (2 * kappa + np.sqrt(4 * kappa**2 + (dimension - 1) ** 2))
    x0 = (1 - b) / (1 + b)
    c = kappa * x0 + (dimension - 1) * np.log(1 - x0**2)
    cosine = np.empty(n)
    missing = np.arange(n)
    while len(missing):
        beta = rng.beta((dimension - 1) / 2, (dimension - 1) / 2, len(missing))
        w = (1 - (1 + b) * beta) / (1 - (1 - b) * beta)
        log_acceptance = kappa * w + (dimension - 1) * np.log(1 - x0 * w) - c
        accepted = log_acceptance >= np.log(rng.random(len(missing)))
        cosine[missing[accepted]] = w[accepted]
        missing = missing[~accepted]
    tangent = rng.standard_normal((n, dimension))
    tangent -= (tangent * centre).sum(1, keepdims=True) * centre
    tangent /= np.linalg.norm(tangent, axis=1, keepdims=True)
    return cosine[:, None] * centre + np.sqrt(1 - cosine[:, None] ** 2) * tangent


def _parameter_matrix(dimension: int) -> np.ndarray:
    """Return A: the paper's [[0.5, 0.2], [0, 0.8]] for d = 2, the same pattern beyond."""
    return np.diag(np.linspace(0.5, 0.8, dimension)) + np.diag(np.full(dimension - 1, 0.2), 1)


def _well_conditioned(rng: np.random.Generator, dimension: int) -> list[np.ndarray]:
    def rotation() -> np.ndarray:
        return np.linalg.qr(rng.standard_normal((dimension, dimension)))[0]

    spread = np.log(_LARGEST_CONDITION)
    return [
        rotation() @ np.diag(np.exp(rng.uniform(0, spread, dimension))) @ rotation()
        for _ in range(_LAYERS)
    ]
