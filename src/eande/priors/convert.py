"""What users hand over as a prior, made into one of ours."""

from typing import Any

from torch.distributions import Distribution

from eande.foundations.checks import InputError
from eande.priors.distribution import DistributionPrior
from eande.priors.prior import Prior


def as_prior(prior: Any) -> Prior:
    """Take a :class:`Prior` as it is and wrap a torch Distribution."""
    if isinstance(prior, Prior):
        return prior
    if isinstance(prior, Distribution):
        return DistributionPrior(prior)
    raise InputError(
        f"prior: expected an eande prior or a torch Distribution, got {type(prior).__name__}"
    )
