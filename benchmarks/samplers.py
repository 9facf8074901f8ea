"""Measure the sampler for many parameters on targets whose truth is known, beside emcee and nautilus where they are installed.

    python benchmarks/samplers.py --size toy|full --output results/samplers.json

gaussian_linear    ten parameters, Gaussian prior and noise of variance 0.1: the posterior is N(y/2, 0.05)
two_modes          ten parameters in a box, Mixture of width 0.1 at ±½ in every coordinate, weights 0.7 and 0.3
two_moons          the common benchmark's observation (0, 0): two crescents of equal weight

Ours and nautilus start from the prior, emcee's walkers from the best of 100,000 prior draws; evaluations before the start are not counted.
Reported are the largest error of a mean in its own standard errors, the weight of the first mode, the number of evaluations and the seconds.
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
from eande.inference.samplers.tempered import tempered
from eande.similarities.dot import Dot
from eande.simulators.sbibm import TASKS
from eande.studies.records import ResultFile, provenance

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
        steps: of emcee, of which the first quarter is thrown away; with 400 walkers about our number of evaluations.
        nautilus_seeds: likewise.
        effective: samples that nautilus is to reach.
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
    place = torch.stack([-(phi[:, 0] + phi[:, 1]).abs(), phi[:, 1] - phi[:, 0]], dim=1) / math.sqrt(
        2
    )
    offset = -place - torch.tensor([0.25, 0.0])
    radius = offset.norm(dim=1)
    inside = -((radius - 0.1) / 0.01).square() / 2 - radius.clamp(min=1e-6).log()
    return torch.where(offset[:, 0] > 0, inside, -1e4)


def _moons_spread() -> Tensor:
    """Return the standard deviations of the two moons, from a million exact draws."""
    generator = torch.Generator().manual_seed(0)
    angle, radius = (
        math.pi * (torch.rand(1_000_000, generator=generator) - 0.5),
        0.1 + 0.01 * torch.randn(1_000_000, generator=generator),
    )
    along, across = 0.25 + radius * angle.cos(), radius * angle.sin()
    # The prior's two axes are turned by 45° against these, and ± along is as likely.
    return ((along.square().mean() + across.square().mean()) / 2).sqrt().repeat(2)


def _through_box(cube: np.ndarray) -> np.ndarray:
    return 2 * cube - 1


def make_targets() -> dict[str, Target]:
    """Return the three targets."""
    wide = math.sqrt(0.1)
    return {
        "gaussian_linear": Target(
            TASKS["gaussian_linear"].prior, lambda phi: (phi - OBSERVED).square().sum(1) / -0.2, OBSERVED / 2, torch.full((D,), math.sqrt(0.05)),
            lambda phi: phi[:, 0] < OBSERVED[0] / 2, 0.5, lambda cube: stats.norm.ppf(cube) * wide,
        ),
        "two_modes": Target(
            eande.BoxPrior([-1] * D, [1] * D), _two_modes, torch.full((D,), 0.2), torch.full((D,), math.sqrt(0.01 + 0.25 - 0.04)),
            lambda phi: phi.mean(1) > 0, 0.7, _through_box,
        ),
        "two_moons": Target(
            eande.BoxPrior([-1, -1], [1, 1]), _two_moons, torch.zeros(2), _moons_spread(), lambda phi: phi.sum(1) > 0, 0.5, _through_box,
        ),
    }  # fmt: skip


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
    """Compare samples (n, D), of which so many are worth independent ones, with the truth."""
    errors = (phi.double().mean(0) - target.mean).abs() / (
        target.deviation / effective.clamp(max=len(phi)).sqrt()
    )
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

    prior, generator = (
        eande.priors.prior.as_prior(target.prior),
        torch.Generator().manual_seed(seed),
    )

    def log_density(phi: np.ndarray) -> np.ndarray:
        tensor = torch.as_tensor(phi, dtype=torch.float32)
        inside = prior.contains(tensor)
        return torch.where(
            inside, prior.log_prob(tensor).double() + target.score(tensor).double(), -torch.inf
        ).numpy()

    bank = prior.sample(100_000, seed=seed)
    best = target.score(bank).topk(10 * size.walkers).indices
    start = (
        bank[best[torch.randperm(len(best), generator=generator)[: size.walkers]]].double().numpy()
    )
    began = time.perf_counter()
    sampler = emcee.EnsembleSampler(size.walkers, len(target.mean), log_density, vectorize=True)
    sampler.random_state = np.random.RandomState(seed).get_state()
    sampler.run_mcmc(start, size.steps)
    chain, discard = sampler.get_chain(), size.steps // 4
    autocorrelation = np.nan_to_num(
        emcee.autocorr.integrated_time(chain[discard:], quiet=True, tol=0), nan=size.steps
    )
    phi = torch.as_tensor(chain[discard:].reshape(-1, chain.shape[-1]))
    effective = torch.as_tensor(len(phi) / np.maximum(autocorrelation, 1))
    return judge(target, phi, effective) | {
        "evaluations": size.walkers * (size.steps + 1),
        "seconds": time.perf_counter() - began,
    }


def with_nautilus(target: Target, seed: int, size: Size) -> dict[str, float]:
    """Run nautilus's nested sampling."""
    from nautilus import Sampler

    began = time.perf_counter()
    sampler = Sampler(
        target.from_cube, lambda phi: target.score(torch.as_tensor(phi, dtype=torch.float32)).double().numpy(),
        n_dim=len(target.mean), vectorized=True, pass_dict=False, seed=seed,
    )  # fmt: skip
    sampler.run(n_eff=size.effective, n_like_max=2_000_000, verbose=False)
    phi, log_weights, _ = (torch.as_tensor(part) for part in sampler.posterior())
    chosen = torch.multinomial(
        log_weights.softmax(0),
        len(phi),
        replacement=True,
        generator=torch.Generator().manual_seed(seed),
    )
    # Chosen again by weight: the error of that adds to the sampler's own.
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
    runs: list[tuple[str, Callable[[Target, int, Size], dict[str, float]], int]] = [
        ("tempered", ours, size.seeds)
    ]
    runs += [("emcee", with_emcee, size.emcee_seeds)] if find_spec("emcee") else []
    runs += [("nautilus", with_nautilus, size.nautilus_seeds)] if find_spec("nautilus") else []
    for name, sample, seeds in runs:
        for label, target in make_targets().items():
            record.add(f"{name}, {label}", [sample(target, seed, size) for seed in range(seeds)])


if __name__ == "__main__":
    main()
