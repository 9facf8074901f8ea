r"""Compare methods where simulations are few, on a problem whose posterior is known.

    python benchmarks/few_simulations.py --size toy|full --output results/few-simulations.json \
        --figure docs/results/few-simulations.png --only 'eande/50/*' 'npe/*'

The problem: φ ~ N(0, I₂), and five numbers y = Aφ + ½ε that are linear in it, so that the posterior
is a Gaussian. The methods, each with its defaults and nothing else, on the same simulations:

    eande     eande.fit(simulations, prior)
    npe       sbi's NPE, which is its NPE_C: a masked autoregressive flow
    nre       sbi's NRE, which is its NRE_B: a classifier among ten

Of every fit the file has, over 500 fresh pairs, the same for all: the mean log ratio log q(φ | y) −
log p(φ) in nats, the mean divergence KL(p(φ | y) ‖ q(φ | y)), by Gauss–Hermite quadrature over the
exact posterior, the coverage of highest-density regions, and what the fit took and warned of. A
ratio is normalised on a grid over φ, so no score is flattered by too few draws of the prior; the
flow is normalised as it is, and its regions are those of samples.

Runs that the file holds are not repeated. ``seconds`` are those of the wall clock,
``cpu_seconds`` those of the processor, which say more where a machine is shared.
"""

import argparse
import fnmatch
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

import eande
from eande.foundations.provenance import provenance
from eande.plots.style import ACCENT, COLORS, OURS, Figure
from eande.studies.lorenz96.through_sbi import Quiet
from eande.studies.records import StoredRuns
from eande.studies.schema import Provenance

A = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, -1.0], [0.5, 2.0]])
NOISE = 0.5
LEVELS = (50, 80, 95)
# Of the fresh pairs; simulations have seeds of their own.
FRESH_SEED = 1_000
# The grid goes out to where the prior has no mass left. Its step, 0.12, is two thirds of the
# narrowest deviation of the exact posterior: for a Gaussian half as wide the sum is still right to
# four digits.
FARTHEST = 4.5
# Points of the quadrature, per parameter.
NODES = 7
# Rows that a network of sbi sees at once.
ROWS = 200_000
PRIOR = MultivariateNormal(torch.zeros(2), torch.eye(2))


@dataclass(frozen=True)
class Size:
    """How much work a run is.

    Args:
        simulations: to fit to.
        seeds: fits of each method and number of simulations.
        fresh: pairs to judge by.
        grid: points of the grid, per parameter.
        samples: of a flow's posterior, for its regions.
        epochs: of training; None for every method's default.
    """

    simulations: tuple[int, ...] = (50, 100, 200)
    seeds: int = 10
    fresh: int = 500
    grid: int = 75
    samples: int = 1_000
    epochs: int | None = None


SIZES = {"full": Size(), "toy": Size((20, 30), 2, fresh=20, grid=21, samples=20, epochs=1)}


@dataclass
class Run:
    """One fit."""

    method: str
    simulations: int
    seed: int
    log_ratio: float
    divergence: float
    covered: dict[str, float]
    seconds: float
    cpu_seconds: float
    warnings: list[str]


@dataclass
class Results:
    """The result file."""

    study: str
    size: str
    seed: int
    settings: dict[str, Any]
    exact: dict[str, Any]
    runs: list[Run]
    summary: dict[str, dict[str, Any]]
    provenance: Provenance
    seconds: float


def simulator(phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return five linear numbers with noise."""
    return phi @ A.numpy().T + NOISE * rng.standard_normal((len(phi), len(A)))


def exact_posterior(y: Tensor) -> MultivariateNormal:
    """Return the posteriors of data (m, 5)."""
    precision = torch.eye(2) + A.T @ A / NOISE**2
    middle = torch.linalg.solve(precision, (y @ A / NOISE**2).T).T
    return MultivariateNormal(middle, precision_matrix=precision.expand(len(y), 2, 2))


def information() -> float:
    """Return the mutual information of φ and y: the exact posterior's mean log ratio."""
    return torch.linalg.slogdet(torch.eye(2) + A.T @ A / NOISE**2)[1].item() / 2


class Fresh(NamedTuple):
    """Pairs to judge by.

    Args:
        phi: parameters (m, 2).
        y: data (m, 5).
        nodes: points of each exact posterior, (m, k, 2).
        weights: theirs in means over the posterior, (k,).
    """

    phi: Tensor
    y: Tensor
    nodes: Tensor
    weights: Tensor

    @classmethod
    def draw(cls, n: int) -> "Fresh":
        """Draw so many pairs."""
        pairs = eande.simulate(simulator, PRIOR, n, seed=FRESH_SEED, progress=False)
        points, weights = np.polynomial.hermite_e.hermegauss(NODES)
        z = torch.cartesian_prod(*[torch.tensor(points, dtype=torch.float32)] * 2)
        share = torch.tensor(weights / weights.sum())
        exact = exact_posterior(pairs.y[:])
        nodes = exact.loc.unsqueeze(1) + z @ exact.scale_tril[0].T
        return cls(pairs.phi, pairs.y[:], nodes, torch.outer(share, share).flatten())


class Judged(NamedTuple):
    """What a posterior says of fresh pairs.

    Args:
        log_ratio: of the true parameters, (m,).
        at_nodes: log ratio of the nodes, (m, k).
        level: of the smallest highest-density region with the true parameters in it, (m,).
    """

    log_ratio: Tensor
    at_nodes: Tensor
    level: Tensor


def judge_scores(
    paired: Callable[[Tensor, Tensor], Tensor],
    shared: Callable[[Tensor], Callable[[Tensor], Tensor]],
    data: Tensor,
    fresh: Fresh,
    size: Size,
) -> Judged:
    """Judge log ratios that are known up to a term of the datum.

    Args:
        paired: scores of data (m, n) and parameters of each, (m, k, 2): (m, k).
        shared: of parameters (k, 2), the function from data (m, n) to their scores, (m, k).
        data: what the method sees of the fresh data: all, or their embeddings.
        fresh: the pairs.
        size: the grid's.
    """
    axis = torch.linspace(-FARTHEST, FARTHEST, size.grid)
    grid = torch.cartesian_prod(axis, axis)
    log_prior = PRIOR.log_prob(grid).double()
    log_cell = 2 * math.log(2 * FARTHEST / (size.grid - 1))
    on_grid = shared(grid)
    parts = []
    rows = zip(*(part.split(50) for part in (fresh.phi, data, fresh.nodes)), strict=True)
    for phi, y, nodes in rows:
        log_density = on_grid(y).double() + log_prior
        log_normalizer = log_density.logsumexp(1, keepdim=True) + log_cell
        own = paired(y, phi.unsqueeze(1)).double() - log_normalizer
        log_density -= log_normalizer
        above = log_density > own + PRIOR.log_prob(phi).unsqueeze(1)
        level = (log_density.exp() * above).sum(1) * math.exp(log_cell)
        parts.append((own[:, 0], paired(y, nodes).double() - log_normalizer, level))
    return Judged(*(torch.cat(part) for part in zip(*parts, strict=True)))


def with_eande(simulations: eande.Simulations, size: Size) -> Callable[[Fresh], Judged]:
    """Fit by our defaults; return the judgement of the model."""
    settings = None if size.epochs is None else eande.FitSettings(epochs=size.epochs)
    model = eande.fit(simulations, PRIOR, settings=settings, progress=False)

    def paired(f: Tensor, phi: Tensor) -> Tensor:
        g = model.emulate_all(phi.flatten(0, 1))
        repeated = f.repeat_interleave(phi.shape[1], 0)
        return model.similarity.paired_score(repeated, g).view(phi.shape[:2])

    def shared(phi: Tensor) -> Callable[[Tensor], Tensor]:
        g = model.emulate_all(phi)
        return lambda f: model.similarity.score(f, g)

    return lambda fresh: judge_scores(paired, shared, model.embed_all(fresh.y), fresh, size)


def of_exact(fresh: Fresh, size: Size) -> dict[str, Any]:
    """Return what the exact posterior scores: on average over all pairs, and on the fresh ones."""

    def paired(y: Tensor, phi: Tensor) -> Tensor:
        return exact_posterior(y).log_prob(phi.transpose(0, 1)).T - PRIOR.log_prob(phi)

    def shared(phi: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda y: paired(y, phi.expand(len(y), -1, -1))

    judged = judge_scores(paired, shared, fresh.y, fresh, size)
    return {
        "information": information(),
        "log_ratio": judged.log_ratio.mean().item(),
        "covered": covered(judged),
    }


def covered(judged: Judged) -> dict[str, float]:
    """Return the share of the pairs that lie in the region of each level."""
    return {str(c): (judged.level < c / 100).double().mean().item() for c in LEVELS}


def _trained(trainer: Any, simulations: eande.Simulations, size: Size) -> Any:
    options = {} if size.epochs is None else {"max_num_epochs": size.epochs}
    trainer.append_simulations(simulations.phi, simulations.y[:])
    return trainer.train(**options)


def with_nre(simulations: eande.Simulations, size: Size) -> Callable[[Fresh], Judged]:
    """Fit sbi's ratio by its defaults; return the judgement of it."""
    from sbi.inference import NRE

    trainer = NRE(PRIOR, tracker=Quiet(), show_progress_bars=False)
    classifier = _trained(trainer, simulations, size)

    def paired(y: Tensor, phi: Tensor) -> Tensor:
        rows = y.unsqueeze(1).expand(-1, phi.shape[1], -1).flatten(0, 1)
        pairs = zip(phi.flatten(0, 1).split(ROWS), rows.split(ROWS), strict=True)
        return torch.cat([classifier(*pair) for pair in pairs]).view(phi.shape[:2])

    def shared(phi: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda y: paired(y, phi.expand(len(y), -1, -1))

    return lambda fresh: judge_scores(paired, shared, fresh.y, fresh, size)


def with_npe(simulations: eande.Simulations, size: Size) -> Callable[[Fresh], Judged]:
    """Fit sbi's flow by its defaults; return the judgement of it."""
    from sbi.inference import NPE

    trainer = NPE(PRIOR, tracker=Quiet(), show_progress_bars=False)
    flow = _trained(trainer, simulations, size)

    def judge(fresh: Fresh) -> Judged:
        def log_prob(phi: Tensor) -> Tensor:
            # sbi has samples first, then data.
            return flow.log_prob(phi.transpose(0, 1), fresh.y).T.double()

        own = log_prob(fresh.phi.unsqueeze(1))
        samples = flow.sample((size.samples,), fresh.y).transpose(0, 1)
        level = (log_prob(samples) > own).double().mean(1)
        at_nodes = log_prob(fresh.nodes) - PRIOR.log_prob(fresh.nodes)
        return Judged(own[:, 0] - PRIOR.log_prob(fresh.phi), at_nodes, level)

    return judge


METHODS = {"eande": with_eande, "npe": with_npe, "nre": with_nre}
LABELS = {"eande": "eande", "npe": "sbi NPE", "nre": "sbi NRE"}


def run_cell(method: str, simulations: int, seed: int, size: Size, fresh: Fresh) -> dict[str, Any]:
    """Fit one method to one set of simulations, and judge it."""
    given = eande.simulate(simulator, PRIOR, simulations, seed=seed, progress=False)
    torch.manual_seed(seed)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        began = (time.perf_counter(), time.process_time())
        judge = METHODS[method](given, size)
        seconds, cpu_seconds = time.perf_counter() - began[0], time.process_time() - began[1]
    with torch.no_grad():
        judged = judge(fresh)
    exact = exact_posterior(fresh.y)
    truth = exact.log_prob(fresh.nodes.transpose(0, 1)).T - PRIOR.log_prob(fresh.nodes)
    run = Run(
        method,
        simulations,
        seed,
        log_ratio=judged.log_ratio.mean().item(),
        divergence=((truth - judged.at_nodes) @ fresh.weights).mean().item(),
        covered=covered(judged),
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        warnings=sorted({f"{one.category.__name__}: {one.message}" for one in warned}),
    )
    return asdict(run) | {
        "threads": torch.get_num_threads(),
        "commit": provenance()["commit"],
    }


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means over seeds, the worst seed, and the provenance of the latest run."""
    summary: dict[str, dict[str, Any]] = {}
    for method in METHODS:
        for n in sorted({run["simulations"] for run in runs}):
            own = [run for run in runs if (run["method"], run["simulations"]) == (method, n)]
            if not own:
                continue
            worst = min(own, key=lambda run: run["log_ratio"])
            summary.setdefault(method, {})[str(n)] = {
                "seeds": len(own),
                "log_ratio": mean(run["log_ratio"] for run in own),
                "worst": {"seed": worst["seed"], "log_ratio": worst["log_ratio"]},
                "divergence": mean(run["divergence"] for run in own),
                "covered": {str(c): mean(run["covered"][str(c)] for run in own) for c in LEVELS},
                "cpu_seconds": mean(run["cpu_seconds"] for run in own),
                "warned": sum(bool(run["warnings"]) for run in own),
            }
    return {
        "summary": summary,
        "provenance": provenance("sbi"),
        "seconds": sum(run["seconds"] for run in runs),
    }


def draw(runs: list[dict[str, Any]], exact: float) -> Figure:
    """Show nats against the number of simulations: every seed a dot, lines through the means.

    Args:
        runs: of all methods.
        exact: what the exact posterior scores on the same pairs.
    """
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.add_subplot()
    sizes = sorted({run["simulations"] for run in runs})
    for value, name in ((exact, "exact posterior"), (0, "prior")):
        axis.axhline(value, color="black", linewidth=1, linestyle=":" if value == 0 else "-")
        axis.annotate(
            name,
            (1, value),
            (-2, 3),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            fontsize=9,
        )
    styles = zip(METHODS, (OURS, ACCENT, COLORS[2]), "os^", ("-", "--", "-."), strict=True)
    for number, (method, color, marker, line) in enumerate(styles):
        own = [run for run in runs if run["method"] == method]
        if not own:
            continue
        # Beside each other, not on top: methods, and the seeds of one.
        places = {n: sizes.index(n) + 0.2 * (number - 1) for n in sizes}
        seeds = max(run["seed"] for run in runs) + 1
        axis.plot(
            [
                places[run["simulations"]] + 0.14 * ((run["seed"] + 0.5) / seeds - 0.5)
                for run in own
            ],
            [run["log_ratio"] for run in own],
            marker,
            color=color,
            alpha=0.5,
            markersize=4.5,
            markeredgewidth=0,
        )
        means = {
            n: mean(run["log_ratio"] for run in own if run["simulations"] == n)
            for n in sizes
            if any(run["simulations"] == n for run in own)
        }
        axis.plot(
            [places[n] for n in means],
            list(means.values()),
            marker + line,
            color=color,
            linewidth=1.2,
            markersize=8,
            markeredgecolor="white",
            label=f"{LABELS[method]}, mean",
        )
    axis.set_xticks(range(len(sizes)), [str(n) for n in sizes])
    axis.set_xlabel("simulations")
    axis.set_ylabel("mean log q(φ | y) − log p(φ) of fresh pairs, nats")
    axis.set_title(
        "Two parameters from five linear numbers: methods by their defaults\n"
        "(small marks: one fit each; higher is better)",
        fontsize=10,
    )
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="lower left", bbox_to_anchor=(0.55, 0.32))
    return figure


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=tuple(SIZES), default="full")
    parser.add_argument("--output", type=Path, default=Path("results/few-simulations.json"))
    parser.add_argument("--figure", type=Path, help="where to draw; not drawn by default")
    parser.add_argument("--only", nargs="+", default=["*"], help="method/simulations/seed, or *")
    asked = parser.parse_args()
    size = SIZES[asked.size]
    cells = [
        (method, n, seed)
        for seed in range(size.seeds)
        for n in size.simulations
        for method in METHODS
        if any(fnmatch.fnmatch(f"{method}/{n}/{seed}", pattern) for pattern in asked.only)
    ]
    if not cells:
        parser.error(f"--only: expected method/simulations/seed, got {' '.join(asked.only)}")
    settings = asdict(size) | {"simulations": list(size.simulations)}
    settings |= {"A": A.tolist(), "noise": NOISE, "fresh_seed": FRESH_SEED}
    head = {"study": "few simulations", "size": asked.size, "seed": 0, "settings": settings}
    fresh = Fresh.draw(size.fresh)
    exact = of_exact(fresh, size)
    stored = StoredRuns(
        asked.output,
        Results,
        head,
        ("method", "simulations", "seed"),
        summary=lambda runs: {"exact": exact} | summarize(runs),
        in_order=True,
    )
    for method, n, seed in cells:
        if stored.find(method=method, simulations=n, seed=seed) is None:
            run = run_cell(method, n, seed, size, fresh)
            print(f"{method}, {n} simulations, seed {seed}: {run['log_ratio']:.2f} nats")
            stored.add(run)
    if asked.figure is not None:
        draw(stored.runs, exact["log_ratio"]).savefig(asked.figure, dpi=150)


if __name__ == "__main__":
    main()
