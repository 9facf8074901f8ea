"""The exact posterior of the influenza study, by Markov chains with the explicit likelihood.

    python -m gallery.influenza.reference

writes ``gallery/influenza/reference.json`` in two minutes.
"""

from pathlib import Path

import numpy as np
import torch
from scipy.stats import nbinom

from gallery import mcmc, references
from gallery.influenza import study

PATH = Path(__file__).with_name("reference.json")
SETTINGS = {"warmup": 3_000, "draws": 1_000, "thin": 5, "seed": 1978}
CHAINS = 64


def log_likelihood(phi: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return log p(y | φ) of data (14,) or (n, 14) for parameters (n, 3)."""
    r0, period, k = np.asarray(phi, dtype=np.float64).T
    mean = study.in_bed(r0, period)
    k = k[:, None]
    counts = np.round(np.expm1(y))
    return nbinom.logpmf(counts, k, k / (k + mean)).sum(1)


def log_posterior(x: np.ndarray) -> np.ndarray:
    """Return the log density of x = log φ (n, 3), but for a constant."""
    phi = np.exp(x)
    prior = study.prior.log_prob(torch.from_numpy(phi)).numpy()
    # The last term is that of the change of coordinates.
    return prior + log_likelihood(phi, study.observed) + x.sum(1)


def main() -> None:
    """Run the chains and write the file."""
    # From the best of many draws of the prior.
    drawn = study.prior.sample(4_000, seed=0).log().double().numpy()
    start = drawn[np.argsort(-log_posterior(drawn))[:CHAINS]]
    chains, accepted = mcmc.sample(log_posterior, start, **SETTINGS)
    found = mcmc.describe(np.exp(chains), study.prior.names, keep=2_000)
    references.write(PATH, study, found | {"accepted": accepted, "settings": SETTINGS})


if __name__ == "__main__":
    main()
