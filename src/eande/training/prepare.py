"""What a fit begins with: arguments checked, simulations split, the prior compared, the call described."""

import warnings
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from scipy import stats
from torch import Tensor, nn

from eande.foundations.checks import EandeWarning, InputError
from eande.foundations.seeds import derive_seed, generator
from eande.inference.model import EmbedAndEmulate
from eande.priors.convert import as_prior, law_fingerprint
from eande.priors.draws import EmpiricalPrior
from eande.priors.prior import Prior
from eande.simulation.read.simulations import Simulations, first_of_groups
from eande.simulation.read.sources import digest, take
from eande.simulation.read.views import View, fixed_views
from eande.training.build import Networks
from eande.training.settings import FitSettings

_FEW_HELD_OUT = 10
_MOST_HELD_OUT = 2_000
# Parameters are compared with so many draws of the prior, along so many directions across; one of a
# million right ones may look wrong.
_COMPARED = 10_000
_DIRECTIONS = 16
_IMPLAUSIBLE = 1e-6


def check_types(
    simulations: Any, settings: Any, validation: Any, networks: Networks, **given: Any
) -> None:
    """Refuse what is of another kind than ``fit`` takes, before anything deep inside trips over it."""
    if not isinstance(simulations, Simulations):
        raise InputError(
            f"simulations: expected Simulations (from arrays: Simulations.from_arrays(phi, y)), got {type(simulations).__name__}"
        )
    if not isinstance(settings, FitSettings):
        raise InputError(f"settings: expected FitSettings(...), got {type(settings).__name__}")
    if not (validation is None or isinstance(validation, Simulations | Real)):
        raise InputError(
            f"validation: expected a fraction or Simulations, got {type(validation).__name__}"
        )
    for name in ("encoder", "emulator"):
        network = getattr(networks, name)
        if not (network is None or isinstance(network, nn.Module)):
            raise InputError(
                f"{name}: expected an nn.Module (an instance, not a class), got {network!r}"
            )
    if not (networks.warm_start is None or isinstance(networks.warm_start, EmbedAndEmulate)):
        raise InputError(
            "warm_start: expected a model (from a file: eande.load(path)), got "
            f"{networks.warm_start!r}"
        )
    if given["views"] is not None and not callable(given["views"]):
        raise InputError(f"views: expected a function of (y, generator), got {given['views']!r}")
    if not (given["callback"] is None or callable(given["callback"])):
        raise InputError(f"callback: expected a function of a record, got {given['callback']!r}")
    if not (given["checkpoint"] is None or isinstance(given["checkpoint"], str | Path)):
        raise InputError(f"checkpoint: expected the name of a folder, got {given['checkpoint']!r}")
    if settings.view_weight > 0 and given["views"] is None:
        raise InputError(f"view_weight: expected 0 without views=, got {settings.view_weight}")
    if given["checkpoint"] is not None and Path(given["checkpoint"]).is_file():
        raise InputError(f"checkpoint: expected a folder, got the file {given['checkpoint']}")
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "device: expected 'cpu' or 'auto' on a machine without a GPU that torch can use, got 'cuda'"
        )


def split(
    simulations: Simulations, validation: float | Simulations | None, seed: int
) -> tuple[Simulations, Simulations]:
    """Return what to train on and what to hold out."""
    if isinstance(validation, Simulations):
        if (
            validation.y_shape != simulations.y_shape
            or validation.phi.shape[1] != simulations.phi.shape[1]
        ):
            raise InputError(
                f"validation: expected phi of dimension {simulations.phi.shape[1]} and y of shape {simulations.y_shape}, "
                f"got {validation.phi.shape[1]} and {validation.y_shape}"
            )
        train, held_out = simulations, validation
    else:
        # More choose no better, and score as long as the rest trains.
        most = _MOST_HELD_OUT / max(1, len(simulations.groups.unique()))
        train, held_out = simulations.split(
            min(0.1, most) if validation is None else validation, seed=seed
        )
    distinct = len(train.groups.unique())
    if distinct < 2:
        raise InputError(
            f"simulations: expected at least 2 different parameters to train on (a batch needs a negative), got {distinct}"
        )
    if len(held_out) < _FEW_HELD_OUT:
        warnings.warn(
            f"only {len(held_out)} simulations are held out: the best epoch is chosen by chance",
            EandeWarning,
            stacklevel=3,
        )
    return train, held_out


def training_prior(prior: Any, simulations: Simulations, validation: Any) -> Prior:
    """Return the prior, checked against the parameters of all simulations; those to train on serve as draws where it is None."""
    if prior is None:
        # One row per group, as training takes them: replicates do not make their parameters
        # likelier.
        return EmpiricalPrior(
            torch.cat(
                [simulations.phi[first_of_groups(simulations.groups)], simulations.failures.phi]
            )
        )
    known = as_prior(prior)
    if known.dimension != simulations.phi.shape[1]:
        raise InputError(
            f"phi: expected {known.dimension} parameters as in the prior, got {simulations.phi.shape[1]}"
        )
    given = {"phi": simulations.phi, "failures": simulations.failures.phi}
    for name, phi in (
        given | {"validation": validation.phi} if isinstance(validation, Simulations) else given
    ).items():
        outside = (~known.contains(phi)).nonzero()[:, 0]
        if len(outside):
            first = int(outside[0])
            raise InputError(
                f"{name}: expected every row inside the prior's support, got {len(outside)} outside, the first at index {first}: "
                f"{phi[first].tolist()}"
            )
    _compare_laws(
        known,
        torch.cat([simulations.phi[first_of_groups(simulations.groups)], simulations.failures.phi]),
    )
    return known


def _compare_laws(prior: Prior, phi: Tensor) -> None:
    """Warn where parameters are no draws of the prior: along each of them, and along some directions across."""
    drawn = prior.sample(_COMPARED, seed=derive_seed(0, "compared")).double()
    phi = phi[torch.linspace(0, len(phi) - 1, min(len(phi), _COMPARED)).round().long()].double()
    across = torch.randn(
        prior.dimension, _DIRECTIONS, generator=generator(0, "directions"), dtype=torch.float64
    )
    directions = torch.cat(
        [
            torch.eye(prior.dimension, dtype=torch.float64),
            across / drawn.std(0).clamp(min=1e-30).unsqueeze(1),
        ],
        dim=1,
    )
    chances = [
        stats.ks_2samp(*pair).pvalue
        for pair in zip((phi @ directions).T.numpy(), (drawn @ directions).T.numpy(), strict=True)
    ]
    implausible = [
        number for number, chance in enumerate(chances) if chance * len(chances) < _IMPLAUSIBLE
    ]
    if implausible:
        first = implausible[0]
        where = f"in {prior.names[first]}" if first < prior.dimension else "in how they go together"
        warnings.warn(
            f"phi: the parameters of the simulations do not look like draws of the prior ({where}; Kolmogorov–Smirnov p = {chances[first]:.1g}), and "
            "posteriors are wrong where they are not: pass the prior they were drawn from, or None for their own law; simulations that failed belong "
            "to them (failed_phi)", EandeWarning, stacklevel=4,
        )  # fmt: skip


def describe_call(
    simulations: Simulations,
    prior: Prior,
    settings: FitSettings,
    views: View | None,
    networks: Networks,
    validation: float | Simulations | None,
) -> dict[str, Any]:
    """Describe a call of ``fit`` as JSON-ready values: only the same call continues a checkpoint."""
    described = {
        f"settings.{name}": value
        for name, value in settings.describe().items()
        if name != "checkpoint_seconds"
    }
    described |= {
        "simulations": simulations.fingerprint(),
        "prior": law_fingerprint(prior),
        "views": digest(next(fixed_views(views, take(simulations.y, slice(4))))),
        "validation": validation,
    }
    if isinstance(validation, Simulations):
        described["validation"] = validation.fingerprint()
    for name, network in networks._asdict().items():
        described[name] = None
        if network is not None:
            weights = sorted(network.state_dict().items())
            described[name] = digest(*(tensor for _, tensor in weights))
    return described
