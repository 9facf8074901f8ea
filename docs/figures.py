"""The pictures of the documentation: ``python docs/figures.py`` makes them anew, in two minutes.

Each function fits a small model and draws what it found; the numbers that pages quote go to
``pictures/figures.json``, with what made them.
"""

import argparse
import json
import platform
import subprocess
import time
from datetime import date
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from torch.distributions import Independent, Normal

import eande
from eande.networks.mlp import ResidualMLP
from eande.plots.style import ACCENT, OURS, REFERENCE
from eande.similarities.calibrated import Calibrated
from eande.simulators.von_mises_fisher import VonMisesFisher

PICTURES = Path(__file__).parent / "pictures"
ROOT = Path(__file__).parents[1]
QUICK = eande.FitSettings(epochs=20, start="linear", device="cpu")


def ring() -> tuple[Figure, dict[str, float]]:
    """The landing page's example: its code is run as it stands there."""
    text = (PICTURES.parent / "index.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    scope: dict[str, Any] = {}
    exec(compile(code, "index.md", "exec"), scope)
    samples = scope["samples"].numpy()
    distance = np.hypot(*samples.T)
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(*samples.T, ".", color=OURS, markersize=2, alpha=0.5)
    left.set(xlabel="east", ylabel="north", aspect="equal", xlim=(-2, 2), ylim=(-2, 2))
    left.set_title("5,000 samples of the posterior")
    # Exact: five readings with noise 0.1, and a prior uniform on the square.
    grid = np.linspace(0.5, 1.5, 1_001)
    readings = np.array([1.0, 1.1, 0.9, 1.0, 1.0])
    exact = grid * np.exp(-((readings[:, None] - grid) ** 2).sum(0) / (2 * 0.1**2))
    exact /= exact.sum() * (grid[1] - grid[0])
    right.hist(distance, 60, range=(0.5, 1.5), density=True, color=OURS, alpha=0.6, label="eande")
    right.plot(grid, exact, color=ACCENT, label="exact")
    right.set(xlabel="distance from the origin", ylabel="posterior density")
    right.legend(frameon=False)
    return figure, {"mean_distance": float(distance.mean()), "std_distance": float(distance.std())}


def embedding() -> tuple[Figure, dict[str, float]]:
    """The synthetic task: parameters, data, the circle in which they meet, a posterior."""
    task = VonMisesFisher(kappa=8, seed=0)
    simulations = eande.simulate(task, task.prior, n=20_000, seed=0, block_size=20_000)
    settings = eande.FitSettings(
        similarity=eande.Cosine(temperature=1 / task.kappa),
        embedding_dimension=2,
        epochs=20,
        steps_per_epoch=100,
        restarts=4,
        restart_epochs=2,
        device="cpu",
    )
    model = eande.fit(
        simulations,
        task.prior,
        encoder=ResidualMLP(2, 2, width=64, blocks=2),
        emulator=ResidualMLP(2, 2, width=32, blocks=1, activation="silu"),
        settings=settings,
    )
    shown = eande.simulate(task, task.prior, n=1_500, seed=1, block_size=1_500)
    observed = shown.y[0]
    angle = angles(task.true_emulator(shown.phi))
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    axes = figure.subplots(1, 4)
    colours = {"c": angle, "cmap": "twilight", "s": 6}
    axes[0].scatter(*shown.phi.T, **colours)
    axes[0].set_title("parameters φ")
    axes[1].scatter(*shown.y[:].T, **colours)
    axes[1].plot(*observed, "*", color=ACCENT, markersize=15)
    axes[1].set_title("data y, one observed")
    f = model.embed_all(shown.y[:])
    g = model.emulate_all(shown.phi)
    axes[2].scatter(*f.T, **colours)
    axes[2].scatter(*(1.25 * g).T, **colours)
    axes[2].plot(*f[0], "*", color=ACCENT, markersize=15)
    axes[2].set_title("f(y), and outside g(φ)")
    for axis in axes[:3]:
        axis.set(xticks=[], yticks=[], box_aspect=1)
    distance = posterior_curves(axes[3], task, model, observed)
    turned = torch.linalg.lstsq(task.true_encoder(shown.y[:]), f).solution
    alignment = 1 - (task.true_encoder(shown.y[:]) @ turned - f).square().mean() / f.var()
    return figure, {"total_variation": distance, "r2_of_f": float(alignment)}


def posterior_curves(axis: Any, task: VonMisesFisher, model: Any, observed: Any) -> float:
    """Draw a posterior along the ellipse, ours and the exact; return their total variation."""
    turn = torch.linspace(-np.pi, np.pi, 721)[:-1]
    on_circle = torch.stack([turn.cos(), turn.sin()], 1)
    phi = (on_circle.double() @ torch.as_tensor(np.linalg.inv(task.matrix)).T).float()
    ours = model.posterior(observed).score(phi).double().softmax(0)
    exact = task.log_ratio(phi, observed[None])[0].softmax(0)
    step = 2 * np.pi / len(turn)
    axis.plot(turn, ours / step, color=OURS, label="eande")
    axis.plot(turn, exact / step, "--", color=ACCENT, label="exact")
    axis.set(xlabel="angle of φ", yticks=[], title="its posterior")
    axis.legend(frameon=False)
    return float((ours - exact).abs().sum() / 2)


def evidence() -> tuple[Figure, dict[str, float]]:
    """Differences of log C between two priors against exact log ratios of evidences."""
    noise = 0.5

    def simulator(phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return phi + noise * rng.standard_normal((len(phi), 2))

    prior = eande.BoxPrior([-3, -3], [3, 3], names=["a", "b"])
    simulations = eande.simulate(simulator, prior, n=5_000, seed=0)
    model = eande.fit(simulations, prior, settings=QUICK)
    narrow = eande.DistributionPrior(Independent(Normal(torch.zeros(2), 0.5), 1))
    ys = eande.simulate(simulator, prior, n=60, seed=1).y[:]
    wide = [posterior.log_normalizer for posterior in model.posteriors(ys)]
    informed = [posterior.log_normalizer for posterior in model.posteriors(ys, prior=narrow)]
    ours = np.array(informed) - np.array(wide)
    box = Normal(0.0, 1.0)
    under_box = ((box.cdf((3 - ys) / noise) - box.cdf((-3 - ys) / noise)) / 6).double().log()
    under_normal = Normal(0.0, (noise**2 + 0.5**2) ** 0.5).log_prob(ys).double()
    exact = (under_normal - under_box).sum(1).numpy()
    figure = Figure(figsize=(4.6, 4.2), layout="constrained")
    axis = figure.subplots()
    ends = [exact.min(), exact.max()]
    axis.plot(ends, ends, color=REFERENCE, label="equal")
    axis.plot(exact, ours, ".", color=OURS, label="60 observations")
    axis.set(xlabel="exact log ratio of evidences", ylabel="difference of log C")
    axis.legend(frameon=False)
    near = exact > -10
    error = float(np.median(np.abs(ours - exact)[near]))
    return figure, {"median_error": error, "observations": int(near.sum())}


def identifiability() -> tuple[Figure, dict[str, float]]:
    """A simulator that depends on the product of two parameters alone."""

    def simulator(phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        product = phi[:, :1] * phi[:, 1:]
        return product + 0.2 * rng.standard_normal((len(phi), 4))

    prior = eande.BoxPrior([0.5, 0.5], [2, 2], names=["rate", "size"])
    simulations = eande.simulate(simulator, prior, n=4_000, seed=0)
    model = eande.fit(simulations, prior, settings=QUICK)
    found = eande.identifiability(model, simulations, points=40)
    stiff, sloppy = found.eigenvalues[found.known].quantile(0.5, 0).tolist()
    return eande.plots.ellipses(found), {"stiff": stiff, "sloppy": sloppy}


def calibration() -> tuple[Figure, dict[str, float]]:
    """Ranks and coverage of posteriors too narrow, right and too wide, by an exponent on r."""

    def simulator(phi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return phi + 0.5 * rng.standard_normal((len(phi), 2))

    prior = eande.BoxPrior([-3, -3], [3, 3], names=["a", "b"])
    simulations = eande.simulate(simulator, prior, n=5_000, seed=0)
    held_out = eande.simulate(simulator, prior, n=1_000, seed=1)
    model = eande.fit(simulations, prior, settings=QUICK)
    figure = Figure(figsize=(11, 3), layout="constrained")
    axes = figure.subplots(1, 4)
    numbers = {}
    looks = {"too narrow": (2.0, ACCENT), "right": (1.0, OURS), "too wide": (0.5, REFERENCE)}
    for axis, (name, (exponent, colour)) in zip(axes, looks.items(), strict=False):
        wrapped = model.with_similarity(Calibrated(model.similarity, exponent))
        found = eande.diagnose(model if exponent == 1 else wrapped, held_out)
        ranks = found.weighed.ranks[:, 0].numpy()
        axis.hist(ranks, 20, range=(0, 1), color=colour)
        axis.axhline(len(ranks) / 20, color="black", linewidth=1)
        axis.set(title=name, xlabel="rank of the true a", yticks=[])
        levels = found.weighed.level.sort().values.numpy()
        axes[3].plot(levels, np.linspace(0, 1, len(levels)), color=colour, label=name)
        numbers[f"covered_80_{name.replace(' ', '_')}"] = found.covered[80]
    axes[3].plot([0, 1], [0, 1], ":", color="black", linewidth=1)
    axes[3].set(xlabel="level of the region", title="share of truths inside", aspect="equal")
    axes[3].legend(frameon=False, fontsize="small")
    return figure, numbers


def angles(points: torch.Tensor) -> torch.Tensor:
    """Return the angle of each point of the plane."""
    return torch.atan2(points[:, 1], points[:, 0])


FIGURES = {
    "ring": ring,
    "embedding": embedding,
    "evidence": evidence,
    "identifiability": identifiability,
    "calibration": calibration,
}


def main(names: list[str]) -> None:
    """Draw the figures of these names, and write down their numbers."""
    torch.set_num_threads(1)
    PICTURES.mkdir(exist_ok=True)
    path = PICTURES / "figures.json"
    document = json.loads(path.read_text()) if path.exists() else {}
    head = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(head, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names:
        begin = time.perf_counter()
        figure, numbers = FIGURES[name]()
        # Without the version of matplotlib in the file: the same picture is the same file.
        figure.savefig(PICTURES / f"{name}.png", dpi=120, metadata={"Software": None})
        document[name] = {
            "numbers": numbers,
            "seconds": round(time.perf_counter() - begin),
            "commit": commit.strip(),
            "date": date.today().isoformat(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "matplotlib": matplotlib.__version__,
            "machine": f"{platform.machine()}, one thread",
        }
        path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
        print(name, numbers)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*FIGURES, []], help="all by default")
    main(parser.parse_args().names or list(FIGURES))
