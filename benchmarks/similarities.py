r"""Compare families of similarities by held-out score, with the default settings otherwise.

    python benchmarks/similarities.py --size toy|full --output results/similarities.json \
        --only 'mixture/slcp/1000/*' 'cosine/*'

The default similarity was chosen by this. The mixture of Gaussians has the paper's cosine as a
member once g and its centres are on a sphere, so what lies between the two is tried as well:

    mixture          s = log Σ_k w_k e^{−κ_k ‖μ_k − g‖² / 2}, points of Rⁿ
    cap              s = log Σ_k w_k e^{κ_k ρ² (m_k·u − 1)} with u = (g, ρ)/‖(g, ρ)‖ and m_k made of
                     μ_k likewise: points of the unit sphere around a pole, the further from it the
                     smaller ρ. For large ρ this is the mixture. ρ is learned, from 10
    sphere           the same with u = g/‖g‖, ρ = 1: points of all of the sphere. Its precisions
                     begin n times as large, as distances are that much smaller; starts are random
    cosine           s = f·g/τ in 128 dimensions, the paper's, τ learned

The first three are run also with a learned offset ("+offset"), s + a(y), where a is an affine map
of f. It cancels in L_ΦY and in C; without it L_YΦ pins the peak of every score at or below 0.

The tasks are those four of the common benchmark whose scores many prior draws can normalise, and
the README's oscillation. Of every fit the file has the mean log ratio of fresh pairs in nats, the
same for all families, its standard error, and the seconds of the fit. Runs that the file holds are
not repeated.
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
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import eande
from eande.foundations.provenance import provenance
from eande.priors.prior import Prior
from eande.similarities.mixture import Mixture
from eande.simulators.sbibm import TASKS
from eande.studies.records import StoredRuns
from eande.studies.schema import Provenance
from eande.training.validation import HeldOut, held_out_log_ratios

# Of the fresh pairs; simulations have seeds of their own.
FRESH_SEED = 1_000
FIRST_RADIUS = 10.0
LOG_PRECISIONS = (-5.0, 12.0)


class Variant(Mixture):
    """A mixture in another geometry, or with an offset.

    Args:
        geometry: ``"flat"``, ``"cap"`` or ``"sphere"``.
        offset: whether with a(y).
        heads: K.
        dimension: n, of the embeddings; None for that of the fit.
    """

    name = "variant of the mixture"

    def __init__(
        self, geometry: str, *, offset: bool, heads: int = 16, dimension: int | None = None
    ) -> None:
        super().__init__(heads, dimension=dimension)
        own = {"geometry": geometry, "offset": offset}
        self.settings = own | {"heads": heads, "dimension": dimension}
        self.geometry = geometry
        self.movable = geometry != "sphere"
        if geometry == "cap":
            self.log_radius = nn.Parameter(torch.tensor(math.log(FIRST_RADIUS)))
        if dimension is None:
            return
        if geometry == "sphere":
            with torch.no_grad():
                self.spread.bias.view(heads, -1)[:, -1] += math.log(dimension)
        if offset:
            self.offset = nn.Linear(dimension, 1)
            nn.init.zeros_(self.offset.weight)
            nn.init.zeros_(self.offset.bias)

    def for_dimension(self, dimension: int) -> "Variant":
        """Return the same with new weights for embeddings in R^n."""
        return Variant(**self.settings | {"dimension": dimension})

    def place(self, raw: Tensor) -> Tensor:
        """Normalise on the sphere; elsewhere leave embeddings where they are."""
        return functional.normalize(raw, dim=-1) if self.geometry == "sphere" else raw

    def _up(self, points: Tensor) -> Tensor:
        """Return where points of Rⁿ are on the sphere."""
        if self.geometry == "cap":
            pole = self.log_radius.exp().expand_as(points[..., :1])
            points = torch.cat([points, pole], dim=-1)
        return points if self.geometry == "flat" else functional.normalize(points, dim=-1)

    def _exponents(self, f: Tensor) -> Tensor:
        if self.geometry == "flat":
            return super()._exponents(f)
        heads = self.spread(f).unflatten(-1, (self.heads, -1))
        centre = self._up(f.unsqueeze(-2) + heads[..., :-2])
        precision = heads[..., -1].clamp(*LOG_PRECISIONS).exp()
        if self.geometry == "cap":
            precision = precision * (2 * self.log_radius).exp()
        # Of unit vectors, −κ ‖m − u‖²/2 is κ (m·u − 1).
        constant = heads[..., -2].log_softmax(-1) - precision
        nothing = torch.zeros_like(precision)
        scaled = precision.unsqueeze(-1) * centre
        return torch.cat([scaled, constant.unsqueeze(-1), nothing.unsqueeze(-1)], dim=-1)

    def _added(self, f: Tensor) -> Tensor:
        return self.offset(f) if self.settings["offset"] else f.new_zeros(len(f), 1)

    def score(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the scores of all pairs, (m, n) × (k, n) → (m, k)."""
        return super().score(f, self._up(g)) + self._added(f)

    def paired_score(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the scores of matching rows, (m, n) × (m, n) → (m,)."""
        return super().paired_score(f, self._up(g)) + self._added(f)[:, 0]

    def grouped_score(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the scores of each datum with points of its own, (m, n) × (m, k, n) → (m, k)."""
        return super().grouped_score(f, self._up(g)) + self._added(f)

    def bound(self, f: Tensor) -> Tensor:
        """Return a(y), and what rounding may add."""
        return super().bound(f) + self._added(f)[:, 0]


# The settings of every family.
FAMILIES: dict[str, Callable[[], dict[str, Any]]] = {
    "mixture": lambda: {"similarity": "mixture"},
    "mixture+offset": lambda: {"similarity": Variant("flat", offset=True)},
    "cap": lambda: {"similarity": Variant("cap", offset=False)},
    "cap+offset": lambda: {"similarity": Variant("cap", offset=True)},
    "sphere": lambda: {"similarity": Variant("sphere", offset=False), "start": "random"},
    "sphere+offset": lambda: {"similarity": Variant("sphere", offset=True), "start": "random"},
    "cosine": lambda: {"similarity": "cosine", "embedding_dimension": 128},
}


@dataclass(frozen=True)
class Size:
    """How much work a run is.

    Args:
        simulations: to fit to.
        seeds: fits of each family to each task and number of simulations.
        fresh: pairs to score by.
        draws: of the prior, for normalisers.
        epochs: of training; None for the default.
    """

    simulations: tuple[int, ...] = (1_000, 10_000)
    seeds: int = 2
    fresh: int = 1_000
    draws: int = 100_000
    epochs: int | None = None


SIZES = {"full": Size(), "toy": Size((60,), 1, fresh=20, draws=200, epochs=1)}


@dataclass
class Run:
    """One fit."""

    family: str
    task: str
    simulations: int
    seed: int
    log_ratio: float
    error: float
    seconds: float
    tried: list[dict[str, Any]]


@dataclass
class Results:
    """The result file."""

    study: str
    size: str
    seed: int
    settings: dict[str, Any]
    runs: list[Run]
    summary: dict[str, dict[str, dict[str, float]]]
    provenance: Provenance
    seconds: float


def oscillation(phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The README's simulator."""
    times = np.linspace(0, 4, 50)
    signal = np.exp(-phi[:, 1:] * times) * np.cos(phi[:, :1] * times)
    return signal + 0.3 * rng.standard_normal(signal.shape)


PROBLEMS: dict[str, tuple[Callable[..., Any], Prior]] = {
    name: (TASKS[name].simulator, TASKS[name].prior)
    for name in ("two_moons", "gaussian_mixture", "slcp", "gaussian_linear")
} | {"oscillation": (oscillation, eande.BoxPrior([1, 0], [4, 1]))}


def run_cell(family: str, task: str, n: int, seed: int, size: Size) -> dict[str, Any]:
    """Fit one model and score it."""
    simulator, prior = PROBLEMS[task]
    simulations, fresh = (
        eande.simulate(simulator, prior, count, seed=own, progress=False)
        for count, own in ((n, seed), (size.fresh, FRESH_SEED + seed))
    )
    # Starting weights of what was made here are no part of a fit's seed.
    torch.manual_seed(seed)
    own = FAMILIES[family]()
    if size.epochs is not None:
        own |= {"epochs": size.epochs}
    settings = eande.FitSettings(seed=seed, device="cpu", **own)
    began = time.perf_counter()
    model = eande.fit(simulations, prior, settings=settings, progress=False)
    seconds = time.perf_counter() - began
    with torch.no_grad():
        found = held_out_log_ratios(model, HeldOut(fresh, None, size.draws), FRESH_SEED)
    run = Run(
        family,
        task,
        n,
        seed,
        log_ratio=found.mean().item(),
        error=found.std().item() / math.sqrt(len(found)),
        seconds=seconds,
        tried=model.tried,
    )
    return asdict(run) | {"threads": torch.get_num_threads(), "commit": provenance()["commit"]}


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means over seeds, and the provenance of the latest run."""
    summary: dict[str, dict[str, dict[str, float]]] = {}
    for run in runs:
        same = [
            other
            for other in runs
            if all(other[key] == run[key] for key in ("family", "task", "simulations"))
        ]
        of_task = summary.setdefault(f"{run['task']}, {run['simulations']}", {})
        of_task[run["family"]] = {
            name: mean(one[name] for one in same) for name in ("log_ratio", "seconds")
        } | {"seeds": len(same)}
    return {
        "summary": summary,
        "provenance": provenance(),
        "seconds": sum(run["seconds"] for run in runs),
    }


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=tuple(SIZES), default="full")
    parser.add_argument("--output", type=Path, default=Path("results/similarities.json"))
    parser.add_argument("--only", nargs="+", default=["*"], help="family/task/simulations/seed")
    asked = parser.parse_args()
    warnings.simplefilter("ignore", eande.EandeWarning)
    size = SIZES[asked.size]
    cells = [
        (family, task, n, seed)
        for seed in range(size.seeds)
        for n in size.simulations
        for task in PROBLEMS
        for family in FAMILIES
        if any(fnmatch.fnmatch(f"{family}/{task}/{n}/{seed}", one) for one in asked.only)
    ]
    if not cells:
        parser.error(f"--only: expected family/task/simulations/seed, got {' '.join(asked.only)}")
    settings = asdict(size) | {"simulations": list(size.simulations), "fresh_seed": FRESH_SEED}
    head = {"study": "similarities", "size": asked.size, "seed": 0, "settings": settings}
    key = ("family", "task", "simulations", "seed")
    stored = StoredRuns(asked.output, Results, head, key, summary=summarize, in_order=True)
    for cell in cells:
        if stored.find(**dict(zip(key, cell, strict=True))) is None:
            run = run_cell(*cell, size)
            print(
                f"{'/'.join(map(str, cell))}: {run['log_ratio']:.3f} ± {run['error']:.3f} nats, "
                f"{run['seconds']:.0f} s",
                flush=True,
            )
            stored.add(run)


if __name__ == "__main__":
    main()
