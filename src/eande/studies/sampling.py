"""Samples of any posterior, however narrow, for studies that must not stop at one of them."""

import warnings
from typing import Any

from torch import Tensor

from eande.foundations.checks import EandeWarning
from eande.inference.samplers.importance import resample
from eande.inference.samplers.rejection import BudgetExceeded


def sample_or_resample(
    posterior: Any, n: int, *, seed: int = 0, **options: Any
) -> tuple[Tensor, bool]:
    """Draw samples, shape (n, D); say whether they are resampled prior draws.

    Where the sampler exceeds its budget, the posterior's prior draws are resampled by their
    weights, with replacement. The second value is then True.

    Args:
        posterior: what to sample.
        n: how many samples.
        seed: same seed, same samples.
        options: for ``posterior.sample``.
    """
    try:
        samples, _ = posterior.sample(n, seed=seed, **options)
    except BudgetExceeded:
        with warnings.catch_warnings():
            # The second value says that the samples are fewer than they look.
            warnings.simplefilter("ignore", EandeWarning)
            samples, _ = resample(posterior, n, seed=seed)
        return samples, True
    return samples, False
