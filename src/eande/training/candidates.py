"""Candidates: parameters among which a model has to find the true ones of held-out data.

The log probability of picking the true φ of a datum out of K others is a proper score, and cheap.
With candidates of the prior it cannot exceed log (K + 1) and loses sight of over-confidence well
before. So where posteriors are sharp the candidates come from a proposal q(φ|y) near the posterior,
the same for all models that are compared, and their scores carry the weight p/q:

    log r(φ, y) ≈ s − log 1/(K + 1) Σ_k e^{s_k} p(φ_k) / q(φ_k | y),      φ_0 = φ,  φ_k ~ q(·|y)

As K grows this is the log ratio itself, for every q that covers the posterior; the prior is always
a part of q, so that it does.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eande.priors.prior import Prior

# The share of the prior in a proposal.
_OF_THE_PRIOR = 0.1
# Kernels of a proposal per datum, and their width: the rule for a normal law, and somewhat more.
_KERNELS = 64
_WIDER = 1.3
# A proposal is drawn from weights of at least this effective size, tempered where there are fewer.
_LEAST_EFFECTIVE = 16.0
_BISECTIONS = 30


@dataclass(frozen=True)
class Candidates:
    """Candidates of m data.

    Args:
        phi: (m, K, D).
        log_weight: log p/q of each, (m, K).
        true_log_weight: log p/q of the true parameters, (m,).
    """

    phi: Tensor
    log_weight: Tensor
    true_log_weight: Tensor

    @classmethod
    def of_prior(cls, prior: Prior, data: int, number: int, seed: int) -> "Candidates":
        """Return candidates of the prior, the same ones for all data."""
        phi = prior.sample(number, seed=seed).expand(data, -1, -1)
        return cls(phi, torch.zeros(data, number), torch.zeros(data))

    def log_ratio(self, true: Tensor, scores: Tensor) -> Tensor:
        """Return the log ratio of every datum's true parameters, (m,).

        Args:
            true: scores of the true parameters, (m,).
            scores: those of the candidates, (m, K).
        """
        true = true.double()
        weighted = torch.cat(
            [
                (true + self.true_log_weight).unsqueeze(1),
                scores.double() + self.log_weight,
            ],
            dim=1,
        )
        return true - weighted.logsumexp(1) + math.log(weighted.shape[1])

    def effective(self, scores: Tensor) -> Tensor:
        """Return the effective number of candidates of every datum, (m,)."""
        weights = (scores.double() + self.log_weight).softmax(1)
        return 1 / weights.square().sum(1)

    def nearer(
        self, scores: Tensor, true_phi: Tensor, prior: Prior, *, generator: torch.Generator
    ) -> "Candidates":
        """Return as many candidates from a proposal nearer to the posteriors of a model.

        The proposal of a datum is a sum of Gaussian kernels at candidates drawn by their weights
        under the model, with a share of the prior.

        Args:
            scores: of the candidates under the model, (m, K).
            true_phi: the true parameters, (m, D).
            prior: has a density.
            generator: to draw from.
        """
        log_weight = _tempered(scores.double() + self.log_weight)
        weights = log_weight.softmax(1)
        rows = torch.multinomial(weights, _KERNELS, replacement=True, generator=generator)
        centres = self.phi.double().gather(1, rows.unsqueeze(2).expand(-1, -1, self.phi.shape[2]))
        factor = _kernel_factor(self.phi.double(), weights)
        number = self.phi.shape[1]
        from_prior = prior.sample(
            len(scores) * number, seed=int(torch.randint(2**62, (), generator=generator))
        ).reshape(self.phi.shape)
        which = torch.randint(_KERNELS, scores.shape, generator=generator)
        noise = torch.randn(self.phi.shape, generator=generator, dtype=torch.float64)
        moved = centres.gather(1, which.unsqueeze(2).expand_as(noise)) + noise @ factor.mT
        of_prior = torch.rand(scores.shape, generator=generator) < _OF_THE_PRIOR
        phi = torch.where(of_prior.unsqueeze(2), from_prior, moved.float())
        return Candidates(
            phi,
            _log_weight(phi, centres, factor, prior),
            _log_weight(true_phi.unsqueeze(1), centres, factor, prior)[:, 0],
        )


def _tempered(log_weight: Tensor) -> Tensor:
    """Return log weights (m, K) raised to the largest power that leaves enough effective ones."""
    low = torch.zeros(len(log_weight), 1, dtype=torch.float64)
    high = torch.ones_like(low)
    finite = log_weight.clamp(min=-1e30)
    if (_effective(finite) >= _LEAST_EFFECTIVE).all():
        return finite
    for _ in range(_BISECTIONS):
        power = (low + high) / 2
        enough = (_effective(power * finite) >= _LEAST_EFFECTIVE).unsqueeze(1)
        low = torch.where(enough, power, low)
        high = torch.where(enough, high, power)
    return torch.where((_effective(finite) >= _LEAST_EFFECTIVE).unsqueeze(1), 1.0, low) * finite


def _effective(log_weight: Tensor) -> Tensor:
    return 1 / log_weight.softmax(1).square().sum(1)


def _kernel_factor(phi: Tensor, weights: Tensor) -> Tensor:
    """Return the Cholesky factor of every datum's kernel (m, D, D), by the rule of Silverman."""
    dimension = phi.shape[2]
    mean = (weights.unsqueeze(2) * phi).sum(1, keepdim=True)
    centred = phi - mean
    covariance = (weights.unsqueeze(2) * centred).mT @ centred
    # Few effective candidates give a flat covariance: some of its diagonal keeps it round.
    diagonal = covariance.diagonal(dim1=1, dim2=2)
    covariance = 0.9 * covariance + torch.diag_embed(0.1 * diagonal + 1e-12 * diagonal.amax())
    effective = 1 / weights.square().sum(1)
    rule = (4 / ((dimension + 2) * effective)) ** (1 / (dimension + 4))
    scale = (_WIDER * rule.clamp(max=1)).view(-1, 1, 1)
    return torch.linalg.cholesky(covariance) * scale


def _log_weight(phi: Tensor, centres: Tensor, factor: Tensor, prior: Prior) -> Tensor:
    """Return log p/q of candidates (m, K, D)."""
    log_prior = prior.log_prob(phi.flatten(0, 1).float()).reshape(phi.shape[:2]).double()
    whitened = torch.linalg.solve_triangular(factor, phi.double().mT, upper=False).mT
    centres = torch.linalg.solve_triangular(factor, centres.mT, upper=False).mT
    squared = torch.cdist(whitened, centres).square()
    dimension = phi.shape[2]
    constant = factor.diagonal(dim1=1, dim2=2).log().sum(1) + dimension / 2 * math.log(2 * math.pi)
    kernels = (-squared / 2).logsumexp(2) - math.log(centres.shape[1]) - constant.unsqueeze(1)
    log_q = torch.logaddexp(
        math.log(1 - _OF_THE_PRIOR) + kernels, math.log(_OF_THE_PRIOR) + log_prior
    )
    return torch.where(log_prior == -torch.inf, -torch.inf, log_prior - log_q)
