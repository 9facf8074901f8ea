"""What a fit begins with: the prior checked against the parameters, the model built, the call described."""

import copy
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from scipy import stats
from torch import Tensor, nn

from eande.calibration.calibrate import first_of_groups
from eande.foundations.checks import EandeWarning, InputError
from eande.foundations.seeds import derive_seed, generator, global_seed
from eande.inference.model import EmbedAndEmulate
from eande.networks.choose import default_encoder, describe_network, make_network
from eande.networks.mlp import ResidualMLP
from eande.priors.convert import as_prior
from eande.priors.draws import EmpiricalPrior
from eande.priors.prior import Prior
from eande.similarities.similarities import Cosine, Gaussians, make_similarity
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.sources import digest, take
from eande.simulation.read.views import View, fixed_views
from eande.training.settings import FitSettings
from eande.training.standardize import standardize_phi, standardize_y

_FEW_HELD_OUT = 10
_MOST_HELD_OUT = 2_000
# Parameters are compared with so many draws of the prior, across so many directions; one of a million right ones may look wrong.
_COMPARED, _DIRECTIONS, _IMPLAUSIBLE = 10_000, 16, 1e-6


def check_types(simulations: Any, settings: Any, validation: Any, **given: Any) -> None:
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
        if given[name] is not None and not isinstance(given[name], nn.Module):
            raise InputError(
                f"{name}: expected an nn.Module (an instance, not a class), got {given[name]!r}"
            )
    if not (given["warm_start"] is None or isinstance(given["warm_start"], EmbedAndEmulate)):
        raise InputError(
            f"warm_start: expected a model (from a file: eande.load(path)), got {given['warm_start']!r}"
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
        # One row per group, as training takes them: replicates do not make their parameters likelier.
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


def build_model(
    train: Simulations,
    views: View | None,
    prior: Prior,
    settings: FitSettings,
    *,
    encoder: nn.Module | None,
    emulator: nn.Module | None,
    warm_start: EmbedAndEmulate | None,
    start: int,
) -> EmbedAndEmulate:
    """Make the model of a start: given networks are copied, others are made from the seed and the number of the start."""
    shape, n = (
        next(fixed_views(views, take(train.y, slice(1)))).shape[1:],
        settings.embedding_dimension,
    )
    if warm_start is not None:
        return _continued(warm_start, prior, shape, settings, encoder, emulator)
    with global_seed(settings.seed, "networks", start):
        if encoder is None:
            encoder = default_encoder(
                shape,
                n,
                width=settings.width,
                blocks=settings.blocks,
                normalization=settings.normalization,
            )
        else:
            encoder = _fresh(encoder, start)
        if emulator is None:
            # A smooth emulator: its derivatives are what tells parameters apart.
            emulator = ResidualMLP(
                prior.dimension,
                n,
                width=settings.width,
                blocks=settings.blocks,
                normalization=settings.normalization,
                activation="silu",
            )
        else:
            emulator = _fresh(emulator, start)
        similarity = make_similarity(settings.similarity, settings.temperature, n)
    model = EmbedAndEmulate(
        encoder,
        emulator,
        similarity,
        prior,
        y_shape=shape,
        embedding_dimension=n,
        y_standardizer=standardize_y(
            train, views, per_channel=describe_network(encoder) is not None
        ),
        phi_standardizer=standardize_phi(train, prior),
    )
    model.frozen = tuple(
        name
        for name, x in model.named_parameters()
        if name.startswith(("encoder.", "emulator.")) and not x.requires_grad
    )
    return model


def _continued(
    model: EmbedAndEmulate,
    prior: Prior,
    shape: torch.Size,
    settings: FitSettings,
    encoder: nn.Module | None,
    emulator: nn.Module | None,
) -> EmbedAndEmulate:
    if model.members:
        raise InputError(
            f"warm_start: expected a single model, got an ensemble of {len(model.members)}; go on from its members one by one"
        )
    if encoder is not None or emulator is not None or settings.restarts > 1:
        raise InputError(
            "warm_start: expected no encoder=, no emulator= and restarts=1 beside it, got at least one of them"
        )
    if (
        tuple(shape) != model.y_shape
        or prior.dimension != model.prior.dimension
        or settings.embedding_dimension != model.embedding_dimension
    ):
        raise InputError(
            f"warm_start: expected data of shape {model.y_shape}, {model.prior.dimension} parameters and embedding dimension "
            f"{model.embedding_dimension}, got {tuple(shape)}, {prior.dimension} and {settings.embedding_dimension}"
        )
    learned = model.similarity
    model = copy.deepcopy(model).cpu()
    model.prior, model.history = prior, []
    if (
        settings.similarity == "cosine"
        and settings.temperature == "learn"
        and isinstance(learned, Cosine)
    ):
        model.similarity = Cosine(learned.temperature, learn=True)
    elif settings.similarity == "gaussians" and isinstance(learned, Gaussians):
        model.similarity.set_exponent(1.0)
        model.similarity.set_aim(None)
        model.similarity.requires_grad_(True)
    else:
        with global_seed(settings.seed, "networks", 0):
            model.similarity = make_similarity(
                settings.similarity, settings.temperature, settings.embedding_dimension
            )
    for name, parameter in model.named_parameters():
        if name.startswith(("encoder.", "emulator.")):
            parameter.requires_grad_(name not in model.frozen)
    return model


def check_members(members: int, *networks: nn.Module | None) -> None:
    """Refuse, before the first of several members is trained, given networks of which all members would be alike."""
    for network in networks:
        if members > 1 and network is not None:
            with global_seed(0):
                _fresh(network, 1, several="members")


def _fresh(network: nn.Module, start: int, several: str = "restarts") -> nn.Module:
    """Return a copy of a given network, with new random weights for every start after the first; frozen parts stay as they are."""
    copied = copy.deepcopy(network).cpu()
    if start == 0:
        return copied
    fresh = _renewed(copied, {})
    _restore_frozen(network, fresh)
    pairs = zip(network.parameters(), fresh.parameters(), strict=True)
    trained = [torch.equal(old.cpu(), new) for old, new in pairs if old.requires_grad]
    if trained and all(trained):
        raise InputError(
            f"{several}: expected 1 for a {type(network).__name__} without reset_parameters, got more: every start would be the same"
        )
    return fresh


def _restore_frozen(given: nn.Module, fresh: nn.Module) -> None:
    """Give a renewed network the frozen parameters again, and the buffers of parts that are frozen as a whole."""
    for name, parameter in given.named_parameters():
        if not parameter.requires_grad:
            fresh.get_parameter(name).requires_grad_(False).copy_(parameter)
    for name, part in given.named_modules():
        if any(True for _ in part.parameters()) and not any(
            parameter.requires_grad for parameter in part.parameters()
        ):
            for label, buffer in part.named_buffers():
                fresh.get_submodule(name).get_buffer(label).copy_(buffer)


def _renewed(module: nn.Module, known: dict[nn.Module, nn.Module]) -> nn.Module:
    """Give a module and its parts new random weights; our networks are made anew, for they choose theirs in their own way."""
    if module not in known:
        description = describe_network(module)
        known[module] = module if description is None else make_network(description)
        if description is None:
            for name, part in module.named_children():
                setattr(module, name, _renewed(part, known))
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
    return known[module]


def describe_call(
    simulations: Simulations,
    prior: Prior,
    settings: FitSettings,
    views: View | None,
    given: Mapping[str, Any],
) -> dict[str, Any]:
    """Describe a call of ``fit`` as JSON-ready values, so that a checkpoint is only ever continued by the same call."""
    described = {
        f"settings.{name}": value
        for name, value in asdict(settings).items()
        if name != "checkpoint_seconds"
    }
    described |= {
        "simulations": simulations.fingerprint(),
        "prior": f"{type(prior).__name__} {digest(prior.sample(64, seed=0))}",
        "views": digest(next(fixed_views(views, take(simulations.y, slice(4))))),
    }
    for name, value in given.items():
        if isinstance(value, nn.Module):
            described[name] = digest(*(tensor for _, tensor in sorted(value.state_dict().items())))
        else:
            described[name] = value.fingerprint() if isinstance(value, Simulations) else value
    return described
