r"""How alike simulations of one forcing are: what the two systems of the Lorenz 96 study can tell.

    python benchmarks/lorenz96_regimes.py --size toy|full --output results/lorenz96-regimes.json

For each system, b = 10 as cited and b = 1 as printed, and each forcing F: simulations that differ
by their initial conditions alone. A chaotic system forgets them, and every window says the same of
F. A system that has settled on one of several regular motions does not: windows of one simulation
are alike and unlike those of another, and what is trained on few simulations can know them again.

energy        standard deviation of the mean energy of the slow variables between simulations,
              over that between windows of one
spectrum      mean absolute difference of log spectra of two simulations, in nats
regular       share of the power in the five strongest frequencies, of 1,000
"""

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from eande.foundations.provenance import provenance
from eande.simulators.lorenz96 import Lorenz96
from eande.studies.records import ResultFile

WINDOWS = 8
STRONGEST = 5
# Of the spectrum: slower than that every motion is, faster there is nothing.
FREQUENCIES = slice(1, 200)


@dataclass(frozen=True)
class Size:
    """How much work a run is."""

    forcings: tuple[float, ...]
    simulations: int
    observations: int


SIZES = {
    "toy": Size((2.0, 13.0), 3, 400),
    "full": Size((2, 4, 6, 8, 10, 11, 12, 13, 14, 15, 16, 18, 20), 16, 2_000),
}


def regime(slow: np.ndarray) -> dict[str, float]:
    """Say how much simulations of one forcing differ.

    Args:
        slow: the slow variables, (simulations, times, places).
    """
    simulations, times, _ = slow.shape
    energy = (slow**2).mean(2)
    windows = energy[:, : times // WINDOWS * WINDOWS].reshape(simulations, WINDOWS, -1).mean(2)
    power = (np.abs(np.fft.rfft(slow - slow.mean(1, keepdims=True), axis=1)) ** 2).mean(2)
    logs = np.log(power[:, FREQUENCIES])
    pairs = [(i, j) for i in range(simulations) for j in range(i)]
    strongest = np.sort(power, axis=1)[:, -STRONGEST:].sum(1) / power.sum(1)
    return {
        "energy": float(energy.mean(1).std(ddof=1) / windows.std(1, ddof=1).mean()),
        "spectrum": float(np.mean([np.abs(logs[i] - logs[j]).mean() for i, j in pairs])),
        "regular": float(strongest.mean()),
    }


def main() -> None:
    """Simulate, measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--output", type=Path, default=Path("results/lorenz96-regimes.json"))
    options = parser.parse_args()
    size = SIZES[options.size]
    results = ResultFile(
        options.output,
        study="lorenz96-regimes",
        size=options.size,
        seed=0,
        settings=asdict(size),
        provenance=provenance("numba"),
    )
    for b in (10.0, 1.0):
        simulator = Lorenz96(observations=size.observations, b=b)
        for forcing in size.forcings:
            phi = np.full((size.simulations, 2), forcing / np.sqrt(2), dtype=np.float32)
            y = np.asarray(simulator(phi, np.random.default_rng(0)))
            found = regime(y[:, :, : simulator.slow].astype(np.float64))
            results.add(f"b = {b:g}, F = {forcing:g}", found)


if __name__ == "__main__":
    main()
