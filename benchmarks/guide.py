r"""Measure guided sampling: of posteriors that are known, and of models fitted to the benchmark.

    python benchmarks/guide.py --size toy|full --output results/guide.json \
        --models out/guide --only 'exact/*' 'fitted/sir'

exact     linear-Gaussian problems of 2 to 20 parameters and 3 to 25 nats, two modes and a banana in
          five parameters, with the exact score in the place of networks: errors of log C in its own
          standard errors, samples' moments and mode weights, seconds
spoilt    the two modes with a guide that is half as wide, shifted, or without one mode
learned   the same, with a guide that the model has learned for two modes that data move
alarms    repetitions of `diagnose` on a Gaussian model of 13 nats that is exact, 1.5 × too narrow
          or 1.5 × too wide
fitted    the ten tasks, fitted to 1,000 simulations with nothing but defaults: seconds of 10,000
          samples, a two-sample test of them against the tempered sampler's, whether `diagnose`
          tests the model
many      the same models: seconds of 1,000 summaries, and of 1,000 samples of 1,000 posteriors

Models are kept in a folder and fitted once. Seconds are told twice: those of the clock, and those
of a processor, which other work on the machine lengthens less; on one thread, or ``--threads``.
Cells that the file holds are not repeated.
"""

import argparse
import fnmatch
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

import eande
from eande.diagnostics.two_sample import c2st
from eande.foundations.provenance import provenance
from eande.inference import guide as guides
from eande.inference.guide import Guide
from eande.inference.guide_network import GuideNetwork
from eande.inference.posterior import Posterior
from eande.inference.samplers.gaussian_mixture import GaussianMixture
from eande.inference.samplers.guided import GuidedInfo
from eande.priors.prior import Prior
from eande.simulators.sbibm import TASKS
from eande.studies.records import StoredRuns
from eande.studies.schema import Provenance

# Models whose score is given are made by helpers of the tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from helpers.exact_posteriors import MODE_WIDTH, cube, moved_modes, posterior_of, two_modes
from helpers.sharp_gaussians import box, gaussian

# Parameters and nats.
LINEAR = ((2, 3), (2, 12), (5, 3), (5, 10), (5, 25), (10, 3), (10, 15), (10, 25))
LINEAR += ((20, 10), (20, 25))
# Of log C of each datum: with a hundred data the root mean square of z is known to 0.035.
ESTIMATES = 4
FAULTS = {"exact": 1.0, "narrow": 1 / 1.5, "wide": 1.5}
WEIGHT = 0.7
WIDTH = 0.1
# Of the banana: φ₁ ~ N(0, 0.3²), φ₂ bent around 2 φ₁² − 0.2, the others N(0, 0.1²).
BENT = (0.3, 0.03)
HELD_OUT_SEED = 7


@dataclass(frozen=True)
class Size:
    """How much work a run is.

    Args:
        data: of each exact problem, for log C.
        sampled: of these, whose samples are compared with the exact moments.
        samples: of each.
        repetitions: of a cell of alarms; there are ten cells of every fault.
        held_out: data of one diagnosis.
        observations: of each task, whose samples are timed.
        compared: of these, with the tempered sampler.
        particles: of that.
        compared_samples: in each of two samples.
        many: posteriors at once.
        each: samples of each of them.
        simulations: that tasks are fitted to.
        epochs: of a fit; None for the default.
        tasks: how many.
    """

    data: int = 100
    sampled: int = 50
    samples: int = 10_000
    repetitions: int = 10
    held_out: int = 300
    observations: int = 10
    compared: int = 1
    particles: int = 4_000
    compared_samples: int = 1_000
    many: int = 1_000
    each: int = 1_000
    simulations: int = 1_000
    epochs: int | None = None
    tasks: int = 10


SIZES = {
    "full": Size(),
    "toy": Size(2, 2, 200, 1, 30, 1, 1, 100, 50, 3, 10, simulations=60, epochs=1, tasks=1),
}


@dataclass
class Run:
    """One cell: its name, and what was found."""

    cell: str
    found: dict[str, Any]
    seconds: float
    cpu_seconds: float


@dataclass
class Results:
    """The result file."""

    study: str
    size: str
    seed: int
    settings: dict[str, Any]
    runs: list[Run]
    provenance: Provenance
    seconds: float


class Known(NamedTuple):
    """A posterior with its truth.

    Args:
        posterior: of an exact score.
        log_normalizer: log C; None where it is not known in closed form.
        white: maps samples to coordinates that are independent standard normal numbers.
        first_mode: says which samples lie in the first of two modes, if there are any.
    """

    posterior: Posterior
    log_normalizer: float
    white: Callable[[Tensor], Tensor]
    first_mode: Callable[[Tensor], Tensor] | None = None


def linear(dimension: int, nats: float, seed: int) -> Known:
    """Return a standard normal prior's posterior, each parameter seen with noise.

    Args:
        dimension: D.
        nats: mutual information of parameters and data.
        seed: of the data.
    """
    variance = 1 / (math.exp(2 * nats / dimension) - 1)
    stream = torch.Generator().manual_seed(seed)
    y = torch.randn(dimension, generator=stream) * (1 + variance) ** 0.5
    deviation = (variance / (1 + variance)) ** 0.5
    square = y.double().square().sum().item() / (2 * (1 + variance))
    prior = MultivariateNormal(torch.zeros(dimension), torch.eye(dimension))
    posterior = posterior_of(
        lambda phi: (phi - y).square().sum(1) / (-2 * variance), prior, draws=10_000
    )
    return Known(
        posterior,
        dimension * math.log(deviation) - square,
        lambda phi: (phi - y / (1 + variance)) / deviation,
    )


def modes(dimension: int, seed: int) -> Known:
    """Return two Gaussians at ±½ in every coordinate of a box, moved a little by the seed."""
    stream = torch.Generator().manual_seed(seed)
    shift = 0.2 * torch.rand(dimension, generator=stream) - 0.1
    posterior = posterior_of(lambda phi: two_modes(phi - shift, WEIGHT, WIDTH), cube(dimension))

    def white(phi: Tensor) -> Tensor:
        first = (phi - shift).mean(1, keepdim=True) > 0
        return (phi - shift - torch.where(first, 0.5, -0.5)) / WIDTH

    # Four of their standard deviations from the edge at least: the box cuts off a part in 30,000.
    log_c = dimension * math.log(WIDTH * math.sqrt(2 * math.pi) / 2)
    return Known(posterior, log_c, white, lambda phi: (phi - shift).mean(1) > 0)


def banana(seed: int) -> Known:
    """Return a narrow parabola in five parameters, turned by the seed."""
    stream = torch.Generator().manual_seed(seed)
    sign = 1.0 - 2.0 * (torch.rand((), generator=stream).item() < 0.5)

    def straight(phi: Tensor) -> Tensor:
        bent = sign * phi[:, 1] - 2 * phi[:, 0] ** 2 + 0.2
        first = torch.stack([phi[:, 0] / BENT[0], bent / BENT[1]], dim=1)
        return torch.cat([first, phi[:, 2:] / WIDTH], dim=1)

    posterior = posterior_of(lambda phi: straight(phi).square().sum(1) / -2, cube(5))
    volume = BENT[0] * BENT[1] * WIDTH**3
    # Beyond 2 φ₁² − 0.2 = 1 the box cuts the parabola off: φ₁ is normal between ± so many of its
    # standard deviations.
    edge = math.sqrt(0.6) / BENT[0]
    inside = math.erf(edge / math.sqrt(2))
    density = math.exp(-(edge**2) / 2) / math.sqrt(2 * math.pi)
    left = torch.ones(5)
    left[0] = (1 - 2 * edge * density / inside) ** 0.5
    log_c = math.log(volume) + 2.5 * math.log(2 * math.pi) - 5 * math.log(2) + math.log(inside)
    return Known(posterior, log_c, lambda phi: straight(phi) / left)


def known(name: str, seed: int) -> Known:
    """Return the exact problem of that name."""
    if name == "banana":
        return banana(seed)
    if name == "modes":
        return modes(5, seed)
    _, dimension, nats = name.split("-")
    return linear(int(dimension), float(nats), seed)


class Clock:
    """Seconds of the clock and of a processor since it was made."""

    def __init__(self) -> None:
        self._began = (time.perf_counter(), time.process_time())

    def read(self) -> dict[str, float]:
        """Return both."""
        return {
            "seconds": time.perf_counter() - self._began[0],
            "cpu_seconds": time.process_time() - self._began[1],
        }


def exact(name: str, size: Size) -> dict[str, Any]:
    """Compare log C and samples of an exact problem with the truth, over data."""
    apart, errors, seconds, routes, means, spreads, weights = [], [], [], [], [], [], []
    for seed in range(size.data):
        problem = known(name, seed)
        clock = Clock()
        if seed < size.sampled:
            phi, info = problem.posterior.sample(size.samples, seed=seed)
            seconds.append(clock.read())
            routes.append(type(info).__name__)
            white = problem.white(phi).double()
            means.append(white.mean(0) * size.samples**0.5)
            # Of a normal number's square the variance is 2.
            spreads.append((white.square().mean(0) - 1) * (size.samples / 2) ** 0.5)
            if problem.first_mode is not None:
                weights.append(problem.first_mode(phi).double().mean().item())
        # With random numbers of its own: by default all posteriors have the same.
        for again in range(ESTIMATES):
            refined = problem.posterior.refine(seed=ESTIMATES * seed + again)
            apart.append(refined.log_normalizer - problem.log_normalizer)
            errors.append(refined.normalizer_error)
    z = torch.tensor(apart) / torch.tensor(errors)
    # Every mean is over as many data: 1 for samples that are independent of each other.
    of_means, of_spreads = torch.stack(means), torch.stack(spreads)
    found = {
        "log_normalizer": {
            "mean_absolute_error": torch.tensor(apart).abs().mean().item(),
            "mean_error": torch.tensor(apart).mean().item(),
            "mean_stated": sum(errors) / len(errors),
            "z_rms": z.square().mean().sqrt().item(),
            "z_largest": z.abs().max().item(),
        },
        "moments": {
            # Over all data, in standard errors; the largest of D numbers.
            "mean_z": (of_means.sum(0) / size.sampled**0.5).abs().max().item(),
            "mean_rms": of_means.square().mean().sqrt().item(),
            "square_z": (of_spreads.sum(0) / size.sampled**0.5).abs().max().item(),
            "square_rms": of_spreads.square().mean().sqrt().item(),
        },
        "routes": {route: routes.count(route) for route in set(routes)},
        **_seconds(seconds),
    }
    if weights:
        found["mode_weight"] = {
            "mean": sum(weights) / len(weights),
            "largest_error": max(abs(weight - WEIGHT) for weight in weights),
        }
    return found


def _seconds(clocks: list[dict[str, float]]) -> dict[str, Any]:
    """Return the median and the largest of several readings."""
    return {
        name: {
            "median": sorted(clock[name] for clock in clocks)[len(clocks) // 2],
            "largest": max(clock[name] for clock in clocks),
        }
        for name in ("seconds", "cpu_seconds")
    }


def _half_as_wide(mixture: GaussianMixture) -> GaussianMixture:
    components = mixture.components
    return mixture._replace(
        components=components._replace(
            factors=components.factors / 2, inverses=components.inverses * 2
        )
    )


def _shifted(mixture: GaussianMixture) -> GaussianMixture:
    return mixture._replace(location=mixture.location + mixture.scale)


def _one_mode(mixture: GaussianMixture) -> GaussianMixture:
    kept = (mixture.components.means > 0).all(2).float() + 1e-12
    weights = mixture.components.weights * kept
    weights = weights / weights.sum(1, keepdim=True)
    return mixture._replace(components=mixture.components._replace(weights=weights))


SPOILT = {
    "none": lambda mixture: mixture,
    "half-as-wide": _half_as_wide,
    "shifted": _shifted,
    "one-mode": _one_mode,
}


@contextmanager
def spoiling(how: str) -> Iterator[None]:
    """Spoil every mixture that a guide is made of."""
    fitted = guides.fit_gaussian_mixture
    guides.fit_gaussian_mixture = lambda *given, **more: SPOILT[how](fitted(*given, **more))
    try:
        yield
    finally:
        guides.fit_gaussian_mixture = fitted


def spoilt(how: str, size: Size) -> dict[str, Any]:
    """Sample two modes in two parameters with a spoilt guide."""
    weights, shares, costs, copies, told = [], [], [], [], 0
    means, spreads = [], []
    for seed in range(size.sampled):
        problem = modes(2, seed)
        with spoiling(how), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", eande.EandeWarning)
            phi, info = problem.posterior.sample(size.samples, seed=seed, sampler="guided")
        told += any(issubclass(one.category, eande.EandeWarning) for one in warned)
        shares.append(info.effective_share)
        costs.append(info.evaluations / size.samples)
        copies.append(info.copies)
        weights.append(problem.first_mode(phi).double().mean().item())
        white = problem.white(phi).double()
        means.append(white.mean(0))
        spreads.append(white.square().mean(0))
    return {
        "mode_weight": sum(weights) / len(weights),
        "largest_mean": torch.stack(means).mean(0).abs().max().item(),
        "deviation": torch.stack(spreads).mean().sqrt().item(),
        "effective_share": sum(shares) / len(shares),
        "evaluations_per_sample": sum(costs) / len(costs),
        "copies": sum(copies) / len(copies),
        "warned": told,
        "of": size.sampled,
    }


class SpoiltNetwork(GuideNetwork):
    """A learned network whose guides are spoilt."""

    def __init__(self, network: GuideNetwork, how: str) -> None:
        super().__init__(network.settings)
        self.load_state_dict(network.state_dict())
        self.how = how

    def guide(self, features: Tensor, prior: Prior) -> Guide:
        """Return spoilt proposals."""
        guide = super().guide(features, prior)
        return guide._replace(mixture=SPOILT[self.how](guide.mixture))


def learned(how: str, size: Size) -> dict[str, Any]:
    """Sample two modes that data move, with a learned guide that is spoilt."""
    model, simulations = moved_modes(500)
    model = eande.learn_guide(model, simulations, progress=False)
    model = model.with_guide(SpoiltNetwork(model.guide, how))
    weights, shares, costs, copies, rounds = [], [], [], [], 0
    means, spreads = [], []
    for y in moved_modes(size.sampled, seed=1)[1].y:
        phi, info = model.posterior(y).sample(size.samples, seed=len(costs), sampler="guided")
        shares.append(info.effective_share)
        costs.append(info.evaluations / size.samples)
        copies.append(info.copies)
        rounds += info.rounds > 0
        first = (phi - y).mean(1) > 0
        weights.append(first.double().mean().item())
        white = (phi - y - torch.where(first, 0.5, -0.5).unsqueeze(1)).double() / MODE_WIDTH
        means.append(white.mean(0))
        spreads.append(white.square().mean(0))
    return {
        "mode_weight": sum(weights) / len(weights),
        "largest_mean": torch.stack(means).mean(0).abs().max().item(),
        "deviation": torch.stack(spreads).mean().sqrt().item(),
        "effective_share": sum(shares) / len(shares),
        "evaluations_per_sample": sum(costs) / len(costs),
        "copies": sum(copies) / len(copies),
        "found_anew": rounds,
        "of": size.sampled,
    }


def alarms(name: str, size: Size) -> dict[str, Any]:
    """Count the alarms of some repetitions."""
    fault, part = name.split("/")
    model, simulated = gaussian(box(5), 0.02, believed=0.02 * FAULTS[fault])
    raised: dict[str, int] = {}
    failed = untested = 0
    for i in range(size.repetitions):
        seed = 1 + int(part) * size.repetitions + i
        found = eande.diagnose(
            model, simulated(size.held_out, seed), draws=10_000, seed=seed, progress=False
        )
        failed += not found.passed
        untested += "NOT TESTED" in str(found)
        for verdict in found.verdicts:
            if verdict.passed is False:
                raised[verdict.name] = raised.get(verdict.name, 0) + 1
    return {"of": size.repetitions, "alarms": failed, "by_check": raised, "not_tested": untested}


def simulated(name: str, size: Size) -> eande.Simulations:
    """Return the simulations that a task's model is fitted to."""
    task = TASKS[name]
    return eande.simulate(
        task.simulator, task.prior, size.simulations, seed=0, block_size=10_000, progress=False
    )


def fitted_model(name: str, size: Size, folder: Path) -> eande.EmbedAndEmulate:
    """Return the task's model: from the folder, or fitted and put there."""
    path = folder / f"{name}-{size.simulations}-0.eande"
    if path.exists():
        return eande.load(path)
    settings = eande.FitSettings(seed=0, epochs=size.epochs, device="cpu")
    model = eande.fit(simulated(name, size), TASKS[name].prior, settings=settings, progress=False)
    folder.mkdir(parents=True, exist_ok=True)
    model.save(path)
    return model


def held_out(name: str, count: int) -> eande.Simulations:
    """Simulate pairs of a task that no model has seen."""
    task = TASKS[name]
    return eande.simulate(task.simulator, task.prior, count, seed=HELD_OUT_SEED, progress=False)


def learning(model: eande.EmbedAndEmulate, name: str, size: Size) -> dict[str, float]:
    """Return the seconds in which a fitted model learns a guide."""
    simulations = simulated(name, size)
    clock = Clock()
    eande.learn_guide(model, simulations, progress=False)
    return clock.read()


def fitted(name: str, size: Size, folder: Path) -> dict[str, Any]:
    """Time samples of a fitted model, compare them with the tempered sampler's, and diagnose it."""
    model = fitted_model(name, size, folder)
    data = held_out(name, max(size.held_out, size.observations))
    # What is kept between posteriors is made before.
    model.posterior(data.y[0]).sample(10)
    clocks, routes, scores, shares, rounds = [], [], [], [], 0
    for i in range(size.observations):
        clock = Clock()
        posterior = model.posterior(data.y[i])
        phi, info = posterior.sample(size.samples, seed=i)
        clocks.append(clock.read())
        routes.append(type(info).__name__)
        if isinstance(info, GuidedInfo):
            shares.append(info.effective_share)
            rounds += info.rounds > 0
        if i < size.compared:
            count = size.compared_samples
            other, _ = posterior.sample(count, seed=i, sampler="tempered", particles=size.particles)
            scores.append(c2st(phi[:count], other))
    clock = Clock()
    found = eande.diagnose(model, data[: size.held_out], progress=False)
    return {
        "parameters": model.prior.dimension,
        "members": len(model.members),
        "held_out_nats": found.log_ratio,
        "routes": {route: routes.count(route) for route in set(routes)},
        "guide": None if model.guide is None else asdict(model.guide.settings),
        "learning": None if model.guide is None else learning(model, name, size),
        "effective_shares": sorted(shares),
        "found_anew": rounds,
        **_seconds(clocks),
        "c2st_against_tempering": scores,
        "diagnose": clock.read(),
        "not_tested": "NOT TESTED" in str(found),
        "nearer": found.nearer,
        "under_100_effective": int((found.weighed.effective_draws < 100).sum()),
        "verdicts": str(found).splitlines(),
    }


def many(name: str, size: Size, folder: Path) -> dict[str, Any]:
    """Time summaries and samples of many posteriors."""
    model = fitted_model(name, size, folder)
    data = held_out(name, size.many)
    model.summaries(data.y[:2], progress=False)
    clock = Clock()
    found = model.summaries(data.y[:], progress=False)
    summaries = clock.read()
    effective = torch.tensor([one.info.effective_draws for one in found])
    nearby = sum(one.info.nearby for one in found)
    clock = Clock()
    model.samples(data.y[:], size.each, progress=False)
    return {
        "threads": torch.get_num_threads(),
        "summaries": summaries,
        "nearby": nearby,
        "fewest_effective_draws": effective.min().item(),
        "under_100_effective": int((effective < 100).sum()),
        "samples": clock.read(),
    }


def cells(size: Size, folder: Path) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return what there is to run, by name."""
    found: dict[str, Callable[[], dict[str, Any]]] = {}
    for name in [*(f"linear-{d}-{nats}" for d, nats in LINEAR), "modes", "banana"]:
        found[f"exact/{name}"] = lambda name=name: exact(name, size)
    for how in SPOILT:
        found[f"spoilt/{how}"] = lambda how=how: spoilt(how, size)
        found[f"learned/{how}"] = lambda how=how: learned(how, size)
    for fault in FAULTS:
        for part in range(10):
            name = f"{fault}/{part}"
            found[f"alarms/{name}"] = lambda name=name: alarms(name, size)
    for kind in (fitted, many):
        for name in list(TASKS)[: size.tasks]:
            found[f"{kind.__name__}/{name}"] = lambda kind=kind, name=name: kind(name, size, folder)
    return found


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the provenance of the latest run, and the seconds of all."""
    return {"provenance": provenance(), "seconds": sum(run["seconds"] for run in runs)}


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=tuple(SIZES), default="full")
    parser.add_argument("--output", type=Path, default=Path("results/guide.json"))
    parser.add_argument("--models", type=Path, default=Path("out/guide"))
    parser.add_argument("--only", nargs="+", default=["*"], help="cells, such as 'exact/*'")
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    size = SIZES[asked.size]
    chosen = {
        name: run
        for name, run in cells(size, asked.models).items()
        if any(fnmatch.fnmatch(name, pattern) for pattern in asked.only)
    }
    if not chosen:
        parser.error(f"--only: expected cells, got {' '.join(asked.only)}")
    head = {"study": "guide", "size": asked.size, "seed": 0, "settings": asdict(size)}
    stored = StoredRuns(asked.output, Results, head, ("cell",), summary=summarize, in_order=True)
    for name, run in chosen.items():
        if stored.find(cell=name) is None:
            clock = Clock()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = run()
            print(f"{name}: {found}", flush=True)
            stored.add({"cell": name, "found": found, **clock.read()})


if __name__ == "__main__":
    main()
