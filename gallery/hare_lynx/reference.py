"""The exact posterior of the hare and lynx study, by Markov chains with the explicit likelihood.

    python -m gallery.hare_lynx.reference

writes ``gallery/hare_lynx/reference.json`` in some minutes.
"""

from pathlib import Path

import numpy as np
import torch
from scipy.stats import norm

from gallery import mcmc, references
from gallery.hare_lynx import study

PATH = Path(__file__).with_name("reference.json")
SETTINGS = {"warmup": 2_000, "draws": 500, "thin": 10, "seed": 1900}
CHAINS = 128


def log_likelihood(phi: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return log p(y | φ) of data (2, 21) or (n, 2, 21) for parameters (n, 8)."""
    mean = study.log_animals(phi)
    scatter = np.asarray(phi, dtype=np.float64)[:, 6:, None]
    return norm.logpdf(y, mean, scatter).sum((1, 2))


def log_posterior(x: np.ndarray) -> np.ndarray:
    """Return the log density of x = log φ (n, 8), but for a constant."""
    phi = np.exp(x)
    prior = study.prior.log_prob(torch.from_numpy(phi)).numpy()
    # The last term is that of the change of coordinates.
    return prior + log_likelihood(phi, study.observed) + x.sum(1)


def main() -> None:
    """Run the chains and write the file."""
    # From the best of many draws of the prior.
    drawn = study.prior.sample(20_000, seed=0).log().double().numpy()
    start = drawn[np.argsort(-log_posterior(drawn))[:CHAINS]]
    chains, accepted = mcmc.sample(log_posterior, start, **SETTINGS)
    found = mcmc.describe(np.exp(chains), study.prior.names, keep=2_000)
    references.write(PATH, study, found | {"accepted": accepted, "settings": SETTINGS})


if __name__ == "__main__":
    main()
