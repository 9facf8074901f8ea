"""Measure the sampler for many parameters on known targets, beside emcee and nautilus.

    python benchmarks/samplers.py --size toy|full --output results/samplers.json

gaussian_linear    ten parameters, Gaussian prior and noise of variance 0.1: the posterior is
                   N(y/2, 0.05)
two_modes          ten parameters in a box, Gaussians of width 0.1 at ±½ in every coordinate,
                   weights 0.7 and 0.3
two_moons          the common benchmark's observation (0, 0): two crescents of equal weight

emcee and nautilus run where they are installed. Ours and nautilus start from the prior, emcee's
walkers from the best of 100,000 prior draws; evaluations before the start are not counted. Reported
are the largest error of a mean in its own standard errors, the weight of the first mode, the number
of evaluations and the seconds.
"""

import argparse
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

import eande
from eande.foundations.provenance import provenance
from eande.inference.samplers.tempered import tempered
from eande.priors.convert import as_prior
from eande.similarities.dot import Dot
from eande.simulators.sbibm import TASKS
from eande.studies.records import ResultFile

D = 10
OBSERVED = torch.linspace(-0.8, 0.8, D)


@dataclass(frozen=True)
class Size:
    """How much work a run is.

    Args:
        seeds: of our sampler.
        samples: per run.
        emcee_seeds: likewise.
        walkers: of emcee.
        steps: of emcee, of which the first quarter is burn-in; with 400 walkers about our number
            of evaluations.
        nautilus_seeds: likewise.
        effective: effective sample size that nautilus is to reach.
    """

    seeds: int = 10
    samples: int = 10_000
    emcee_seeds: int = 3
    walkers: int = 400
    steps: int = 4_000
    nautilus_seeds: int = 1
    effective: int = 5_000


SIZES = {"full": Size(), "toy": Size(1, 1_000, 1, 40, 40, 0, 100)}


@dataclass(frozen=True)
class Target:
    """A posterior with its truth.

    Args:
        prior: of the parameters.
        score: log likelihood of parameters (m, D), up to a constant.
        mean: of the posterior (D,).
        deviation: its standard deviations (D,).
        first_mode: says which of parameters (m, D) lie in the first mode.
        weight: of that mode.
        from_cube: maps the unit cube to the prior, for nested sampling.
    """

    prior: Any
    score: Callable[[Tensor], Tensor]
    mean: Tensor
    deviation: Tensor
    first_mode: Callable[[Tensor], Tensor]
    weight: float
    from_cube: Callable[[np.ndarray], np.ndarray]


def _two_modes(phi: Tensor) -> Tensor:
    squares = [((phi - centre) / 0.1).square().sum(1) / -2 for centre in (0.5, -0.5)]
    return torch.logaddexp(squares[0] + math.log(0.7), squares[1] + math.log(0.3))


def _two_moons(phi: Tensor) -> Tensor:
    turned = torch.stack([-(phi[:, 0] + phi[:, 1]).abs(), phi[:, 1] - phi[:, 0]], dim=1)
    offset = -turned / math.sqrt(2) - torch.tensor([0.25, 0.0])
    radius = offset.norm(dim=1)
    inside = -((radius - 0.1) / 0.01).square() / 2 - radius.clamp(min=1e-6).log()
    return torch.where(offset[:, 0] > 0, inside, -1e4)


def _moons_spread() -> Tensor:
    """Return the standard deviations of the two moons, from a million exact draws."""
    generator = torch.Generator().manual_seed(0)
    angle = math.pi * (torch.rand(1_000_000, generator=generator) - 0.5)
    radius = 0.1 + 0.01 * torch.randn(1_000_000, generator=generator)
    along = 0.25 + radius * angle.cos()
    across = radius * angle.sin()
    # The prior's two axes are turned by 45° against these, and ± along is as likely.
    return ((along.square().mean() + across.square().mean()) / 2).sqrt().repeat(2)


def _through_box(cube: np.ndarray) -> np.ndarray:
    return 2 * cube - 1


def make_targets() -> dict[str, Target]:
    """Return the three targets."""
    wide = math.sqrt(0.1)
    return {
        "gaussian_linear": Target(
            prior=TASKS["gaussian_linear"].prior,
            score=lambda phi: (phi - OBSERVED).square().sum(1) / -0.2,
            mean=OBSERVED / 2,
            deviation=torch.full((D,), math.sqrt(0.05)),
            first_mode=lambda phi: phi[:, 0] < OBSERVED[0] / 2,
            weight=0.5,
            from_cube=lambda cube: stats.norm.ppf(cube) * wide,
        ),
        "two_modes": Target(
            prior=eande.BoxPrior([-1] * D, [1] * D),
            score=_two_modes,
            mean=torch.full((D,), 0.2),
            deviation=torch.full((D,), math.sqrt(0.01 + 0.25 - 0.04)),
            first_mode=lambda phi: phi.mean(1) > 0,
            weight=0.7,
            from_cube=_through_box,
        ),
        "two_moons": Target(
            prior=eande.BoxPrior([-1, -1], [1, 1]),
            score=_two_moons,
            mean=torch.zeros(2),
            deviation=_moons_spread(),
            first_mode=lambda phi: phi.sum(1) > 0,
            weight=0.5,
            from_cube=_through_box,
        ),
    }


class _Constant(nn.Module):
    def forward(self, y: Tensor) -> Tensor:
        return torch.ones(len(y), 1)


class _Score(nn.Module):
    def __init__(self, score: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.score = score

    def forward(self, phi: Tensor) -> Tensor:
        return self.score(phi).unsqueeze(1)


def judge(target: Target, phi: Tensor, effective: Tensor) -> dict[str, float]:
    """Compare samples (n, D) of these effective sample sizes (D,) with the truth."""
    standard_error = target.deviation / effective.clamp(max=len(phi)).sqrt()
    errors = (phi.double().mean(0) - target.mean).abs() / standard_error
    return {
        "largest_error_of_mean": errors.max().item(),
        "weight": target.first_mode(phi).double().mean().item(),
        "exact_weight": target.weight,
    }


def ours(target: Target, seed: int, size: Size) -> dict[str, float]:
    """Sample a model whose score is the target's."""
    dimension = len(target.mean)
    model = eande.EmbedAndEmulate(
        _Constant(), _Score(target.score), Dot(1), target.prior, y_shape=(1,), embedding_dimension=1
    )
    began = time.perf_counter()
    phi, info = model.posterior(torch.zeros(1), draws=50_000).sample(
        size.samples, seed=seed, sampler=tempered
    )
    seconds = time.perf_counter() - began
    effective = torch.tensor(info.effective_samples).expand(dimension)
    return judge(target, phi, effective) | {"evaluations": info.evaluations, "seconds": seconds}


def with_emcee(target: Target, seed: int, size: Size) -> dict[str, float]:
    """Run emcee's default move from prior draws chosen by their scores."""
    import emcee

    prior = as_prior(target.prior)
    generator = torch.Generator().manual_seed(seed)

    def log_density(phi: np.ndarray) -> np.ndarray:
        tensor = torch.as_tensor(phi, dtype=torch.float32)
        inside = prior.contains(tensor)
        return torch.where(
            inside, prior.log_prob(tensor).double() + target.score(tensor).double(), -torch.inf
        ).numpy()

    bank = prior.sample(100_000, seed=seed)
    best = target.score(bank).topk(10 * size.walkers).indices
    chosen = best[torch.randperm(len(best), generator=generator)[: size.walkers]]
    start = bank[chosen].double().numpy()
    began = time.perf_counter()
    sampler = emcee.EnsembleSampler(size.walkers, len(target.mean), log_density, vectorize=True)
    sampler.random_state = np.random.RandomState(seed).get_state()
    sampler.run_mcmc(start, size.steps)
    chain = sampler.get_chain()[size.steps // 4 :]
    autocorrelation = emcee.autocorr.integrated_time(chain, quiet=True, tol=0)
    autocorrelation = np.nan_to_num(autocorrelation, nan=size.steps)
    phi = torch.as_tensor(chain.reshape(-1, chain.shape[-1]))
    effective = torch.as_tensor(len(phi) / np.maximum(autocorrelation, 1))
    return judge(target, phi, effective) | {
        "evaluations": size.walkers * (size.steps + 1),
        "seconds": time.perf_counter() - began,
    }


def with_nautilus(target: Target, seed: int, size: Size) -> dict[str, float]:
    """Run nautilus's nested sampling."""
    from nautilus import Sampler

    def log_likelihood(phi: np.ndarray) -> np.ndarray:
        return target.score(torch.as_tensor(phi, dtype=torch.float32)).double().numpy()

    began = time.perf_counter()
    sampler = Sampler(
        target.from_cube,
        log_likelihood,
        n_dim=len(target.mean),
        vectorized=True,
        pass_dict=False,
        seed=seed,
    )
    sampler.run(n_eff=size.effective, n_like_max=2_000_000, verbose=False)
    phi, log_weights, _ = (torch.as_tensor(part) for part in sampler.posterior())
    chosen = torch.multinomial(
        log_weights.softmax(0),
        len(phi),
        replacement=True,
        generator=torch.Generator().manual_seed(seed),
    )
    # The error of resampling adds to the sampler's own.
    effective = torch.tensor(1 / (1 / sampler.n_eff + 1 / len(phi))).expand(len(target.mean))
    return judge(target, phi[chosen], effective) | {
        "evaluations": int(sampler.n_like),
        "seconds": time.perf_counter() - began,
    }


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=tuple(SIZES), default="full")
    parser.add_argument("--output", type=Path, default=Path("results/samplers.json"))
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    size = SIZES[asked.size]
    about = {
        "settings": asdict(size),
        "seed": 0,
        "provenance": provenance("emcee", "nautilus-sampler"),
    }
    record = ResultFile(asked.output, study="samplers", size=asked.size, **about)
    runs = [("tempered", ours, size.seeds)]
    if find_spec("emcee"):
        runs.append(("emcee", with_emcee, size.emcee_seeds))
    if find_spec("nautilus"):
        runs.append(("nautilus", with_nautilus, size.nautilus_seeds))
    for name, sample, seeds in runs:
        for label, target in make_targets().items():
            record.add(f"{name}, {label}", [sample(target, seed, size) for seed in range(seeds)])


if __name__ == "__main__":
    main()
