"""ArviZ: posterior samples and diagnostics in the container analysts already read."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from eande.diagnostics.diagnosis import Diagnosis
from eande.foundations.checks import (
    InputError,
    as_float_tensor,
    check_count,
    check_fits,
    check_instance,
    check_no_infinity,
    check_seed,
    check_shape,
)
from eande.foundations.seeds import derive_seed
from eande.inference.derived import Derived, add_derived
from eande.inference.posterior import Posterior
from eande.simulation.read.simulations import Simulations

try:
    from arviz_base import from_dict
except ImportError as error:
    raise ImportError(
        f"this bridge needs arviz-base ({error}): pip install 'embed-and-emulate[arviz]'"
    ) from None


def to_arviz(
    posterior: Posterior | Sequence[Posterior],
    *,
    samples: int = 4_000,
    prior_samples: int = 4_000,
    predictive: Any = None,
    observed: Any = None,
    derived: Derived | None = None,
    seed: int = 0,
    **options: Any,
) -> Any:
    """Draw samples and return them as a DataTree.

    Its groups are ``posterior``, with each parameter under its name, ``sample_stats`` and
    ``prior``, and where they are given ``posterior_predictive`` and ``observed_data``, both of a
    variable ``y``. The ratio is no likelihood of data: it is ``log_ratio`` among the statistics.

    Samples of acceptance–rejection are independent: they come as one chain. Several posteriors give
    one more dimension, ``observation``. What the sampler reports about its samples, such as how
    many are different, is in the attributes of ``sample_stats``: ArviZ cannot see it in the
    samples.

    Args:
        posterior: of one observation, or those of several, under one prior.
        samples: of each.
        prior_samples: of the prior, for plots of one against the other.
        predictive: data simulated from parameters of the posterior, Simulations or an array of
            shape (m, …), where it is one.
        observed: the observation it is the posterior of, where it is one.
        derived: further quantities by name, each a function of the parameters by name.
        seed: of all draws.
        options: of the sampler.
    """
    check_count("samples", samples, 1)
    check_count("prior_samples", prior_samples, 1)
    check_seed("seed", seed)
    several = isinstance(posterior, Sequence)
    chosen = _check_posteriors(posterior)
    prior = chosen[0].prior
    check_fits("samples", samples, 4 * prior.dimension)
    check_fits("prior_samples", prior_samples, 4 * prior.dimension)
    if several and (predictive is not None or observed is not None):
        raise InputError(
            "posterior: expected one beside predictive= and observed=, which belong to one, got "
            f"{len(chosen)} in a list"
        )
    of_data = _groups_of_data(predictive, observed)
    # Seeds of their own: samples of one seed come from the same proposals.
    drawn = [
        one.sample(samples, seed=derive_seed(seed, i) if several else seed, **options)
        for i, one in enumerate(chosen)
    ]
    extended = [add_derived(prior.names, phi, derived) for phi, _ in drawn]
    names = extended[0][0]
    _check_names(names, {"chain", "draw"} | ({"observation", "log_ratio"} if several else set()))
    log_ratios = [
        one.log_ratio(phi).cpu().numpy() for one, (phi, _) in zip(chosen, drawn, strict=True)
    ]
    # Axes: chain, draw, observation, parameter.
    values = np.stack([phi.cpu().numpy() for _, phi in extended], axis=1)[None]
    ratios = np.stack(log_ratios, axis=-1)[None]
    dims = None
    if several:
        dims = {name: ["observation"] for name in (*names, "log_ratio")}
    else:
        values = values[:, :, 0]
        ratios = ratios[:, :, 0]
    tree = from_dict(
        {
            "posterior": _by_name(names, values),
            "sample_stats": {"log_ratio": ratios},
        },
        dims=dims,
    )
    # A call of its own: here the same names have no dimension of observations.
    of_prior = add_derived(prior.names, prior.sample(prior_samples, seed=seed), derived)[1]
    tree["prior"] = from_dict({"prior": _by_name(names, of_prior.numpy()[None])})["prior"]
    for name, group in of_data.items():
        tree[name] = from_dict({name: {"y": group}})[name]
    tree["sample_stats"].attrs["sampler"] = [str(info) for _, info in drawn]
    return tree


def _check_posteriors(given: Posterior | Sequence[Posterior]) -> list[Posterior]:
    """Return one posterior or several as a list, all under one prior."""
    chosen = list(given) if isinstance(given, Sequence) else [given]
    if not chosen:
        raise InputError("posterior: expected at least one, got none")
    for one in chosen:
        check_instance(
            "posterior", one, Posterior, "a Posterior (from a model: model.posterior(y)) or several"
        )
    if any(one.prior is not chosen[0].prior for one in chosen):
        raise InputError("posterior: expected several under one prior, got different priors")
    return chosen


def _groups_of_data(predictive: Any, observed: Any) -> dict[str, np.ndarray]:
    """Return the groups of data that are given, by their names in the container."""
    groups = {}
    shape: tuple[int | str, ...] | None = None
    if observed is not None:
        y = as_float_tensor("observed", observed).detach().cpu()
        check_no_infinity("observed", y)
        check_count("number of axes of observed", y.ndim, 1)
        check_count("size of observed", y.numel(), 1)
        shape = tuple(y.shape)
        groups["observed_data"] = y.numpy()
    if predictive is not None:
        given = predictive.y[:] if isinstance(predictive, Simulations) else predictive
        simulated = as_float_tensor("predictive", given).detach().cpu()
        check_no_infinity("predictive", simulated)
        check_count("number of axes of predictive", simulated.ndim, 2)
        check_shape("predictive", simulated, ("m", *(shape or simulated.shape[1:])))
        check_count("size of predictive", simulated.numel(), 1)
        # The first axis is the chain.
        groups["posterior_predictive"] = simulated.numpy()[None]
    return groups


def _by_name(names: Sequence[str], values: np.ndarray) -> dict[str, np.ndarray]:
    """Return the last axis of an array taken apart, one entry per parameter."""
    return {name: values[..., d] for d, name in enumerate(names)}


def _check_names(names: Sequence[str], taken: set[str]) -> None:
    """Refuse names of parameters that mean something else in the container."""
    if both := sorted(taken & set(names)):
        raise InputError(
            "names: expected parameters with names of their own, "
            f"got {', '.join(map(repr, both))}, which ArviZ's container uses"
        )


def diagnosis_to_arviz(diagnosis: Diagnosis) -> Any:
    """Return the ranks of a diagnosis as a DataTree, one entry per held-out datum.

    They are ``coverage``, ``tarp`` and the rank of each parameter. ArviZ's plots of probability
    integral transforms take them as they are.
    """
    check_instance("diagnosis", diagnosis, Diagnosis, "a Diagnosis (from eande.diagnose)")
    weighed = diagnosis.weighed
    joint = {name.lower(): ranks for name, ranks in weighed.joint_ranks.items()}
    _check_names(diagnosis.names, {"chain", "draw", *joint})
    ranks = dict(zip(diagnosis.names, weighed.ranks.T, strict=True)) | joint
    stats = {"log_ratio": weighed.log_ratio, "effective_draws": weighed.effective_draws}
    # The first axis is the chain.
    return from_dict(
        {
            "posterior": {name: values.numpy()[None] for name, values in ranks.items()},
            "sample_stats": {name: values.numpy()[None] for name, values in stats.items()},
        }
    )
