"""The model a fit starts from: its networks (made, given or continued) and standardisers."""

import copy
from typing import NamedTuple

import torch
from torch import nn

from eande.foundations.checks import InputError
from eande.foundations.seeds import global_seed
from eande.inference.model import EmbedAndEmulate
from eande.networks.choose import (
    default_encoder,
    describe_network,
    kind_of_data,
    make_network,
)
from eande.networks.mlp import ResidualMLP
from eande.priors.prior import Prior
from eande.similarities.similarity import as_similarity
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.sources import take
from eande.simulation.read.views import View, fixed_views
from eande.training.linear import start_linear
from eande.training.settings import FitSettings
from eande.training.standardize import Standardized, standardize_phi, standardize_y, widen
from eande.training.telling import turn_down


class Networks(NamedTuple):
    """The networks that the caller of ``fit`` gave; None or a word for those to be made."""

    encoder: nn.Module | str | None = None
    emulator: nn.Module | None = None
    warm_start: EmbedAndEmulate | None = None


def build_model(
    train: Simulations,
    views: View | None,
    prior: Prior,
    settings: FitSettings,
    given: Networks,
    *,
    start: int,
) -> EmbedAndEmulate:
    """Make the model of a start.

    Given networks are copied, others are made from the seed and the number of the start.
    """
    shape = next(fixed_views(views, take(train.y, slice(1)))).shape[1:]
    if given.warm_start is not None:
        if settings.start == "linear":
            raise InputError("start: expected 'random' with warm_start=, got 'linear'")
        if settings.inputs not in (None, "all"):
            raise InputError(f"inputs: expected 'all' with warm_start=, got {settings.inputs!r}")
        model = _continued(given, prior, shape, settings)
        widen(model.y_standardizer, train, views)
        return model
    _check_inputs(settings, shape, given.encoder)
    n = settings.embedding_dimension
    with global_seed(settings.seed, "networks", start):
        if isinstance(given.encoder, nn.Module):
            encoder = _fresh(given.encoder, start)
        else:
            encoder = _default_encoder(shape, given.encoder, settings)
        if given.emulator is None:
            emulator = _default_emulator(prior.dimension, settings)
        else:
            emulator = _fresh(given.emulator, start)
        similarity = as_similarity(settings.similarity).for_dimension(n)
    model = EmbedAndEmulate(
        encoder,
        emulator,
        similarity,
        prior,
        y_shape=shape,
        embedding_dimension=n,
        y_standardizer=standardize_y(
            train,
            views,
            _axis_of_scales(shape, given.encoder, encoder),
            natural=settings.natural_coordinates,
        ),
        phi_standardizer=standardize_phi(train, prior, natural=settings.natural_coordinates),
    )
    if settings.inputs == "telling":
        turn_down(model, train, views)
    if settings.start == "linear":
        with global_seed(settings.seed, "linear start", start):
            start_linear(model, train, views)
    model.frozen = tuple(
        name
        for name, parameter in model.named_parameters()
        if name.startswith(("encoder.", "emulator.")) and not parameter.requires_grad
    )
    return model


def _check_inputs(
    settings: FitSettings, shape: torch.Size, encoder: nn.Module | str | None
) -> None:
    """Refuse ``inputs`` that the data or the encoder have not."""
    if settings.inputs == "telling" and not _are_vectors(shape, encoder):
        raise InputError(
            f"inputs: expected 'all' for data that are no vectors, got 'telling' for shape {shape}"
        )
    if settings.inputs == "stationary" and not have_places(shape, encoder):
        raise InputError(
            "inputs: expected 'all' but for series and grids with an encoder of ours, got "
            f"'stationary' for shape {shape}"
        )


def _are_vectors(shape: torch.Size, encoder: nn.Module | str | None) -> bool:
    """Return whether every number of a datum has a place of its own."""
    if isinstance(encoder, nn.Module):
        return len(shape) == 1
    return kind_of_data(shape, encoder) == "vector" and len(shape) == 1


def have_places(shape: torch.Size, encoder: nn.Module | str | None) -> bool:
    """Return whether data are series or grids, and their encoder is to be made."""
    return not isinstance(encoder, nn.Module) and kind_of_data(shape, encoder) in ("series", "grid")


def _axis_of_scales(
    shape: torch.Size, given: nn.Module | str | None, encoder: nn.Module
) -> Standardized:
    """Return which numbers of a datum are standardised together.

    Entries of a vector each by itself, channels or columns as wholes; a field for a user's encoder
    all alike.
    """
    if isinstance(given, nn.Module):
        if len(shape) == 1:
            return Standardized.ENTRIES
        ours = describe_network(encoder) is not None
        return Standardized.CHANNELS if ours else Standardized.WHOLE
    kind = kind_of_data(shape, given)
    if kind == "vector":
        return Standardized.ENTRIES
    if kind == "set":
        return Standardized.COLUMNS
    alone = len(shape) == (1 if kind == "series" else 2)
    return Standardized.ONE_CHANNEL if alone else Standardized.CHANNELS


def _default_encoder(shape: torch.Size, kind: str | None, settings: FitSettings) -> nn.Module:
    assert settings.width is not None
    return default_encoder(
        shape,
        settings.embedding_dimension,
        kind,
        width=settings.width,
        blocks=settings.blocks,
        normalization=settings.normalization,
        activation=settings.activation or "relu",
        linear_skip=settings.linear_skip,
        places=settings.inputs != "stationary",
        gaps=settings.missing == "mask",
    )


def _default_emulator(dimension: int, settings: FitSettings) -> nn.Module:
    assert settings.width is not None
    return ResidualMLP(
        dimension,
        settings.embedding_dimension,
        width=settings.width,
        blocks=settings.blocks,
        normalization=settings.normalization,
        # Smooth, because nearby parameters are distinguished by its derivatives.
        activation=settings.activation or "silu",
        linear_skip=settings.linear_skip,
    )


def _continued(
    given: Networks, prior: Prior, shape: torch.Size, settings: FitSettings
) -> EmbedAndEmulate:
    """Return a copy of a model to go on from, as it was before any calibration."""
    model = given.warm_start
    assert model is not None
    if model.combined_views is not None:
        raise InputError(
            "warm_start: expected a model of a single view, got one that combines several; go on "
            "from what it was made of"
        )
    if model.members:
        raise InputError(
            f"warm_start: expected a single model, got an ensemble of {len(model.members)}; go on "
            "from its members one by one"
        )
    if given.encoder is not None or given.emulator is not None or settings.restarts > 1:
        raise InputError(
            "warm_start: expected no encoder=, no emulator= and restarts=1 beside it, got at least "
            "one of them"
        )
    n = settings.embedding_dimension
    expected = (model.y_shape, model.prior.dimension, model.embedding_dimension)
    if expected != (tuple(shape), prior.dimension, n):
        raise InputError(
            f"warm_start: expected data of shape {model.y_shape}, {model.prior.dimension} "
            f"parameters and embedding dimension {model.embedding_dimension}, got {tuple(shape)}, "
            f"{prior.dimension} and {n}"
        )
    trained = model.similarity.trained
    model = copy.deepcopy(model).cpu()
    model.prior = prior
    model.history = []
    model.guide = None
    with global_seed(settings.seed, "networks", 0):
        model.similarity = as_similarity(settings.similarity).continued(trained, n)
    for name, parameter in model.named_parameters():
        if name.startswith(("encoder.", "emulator.")):
            parameter.requires_grad_(name not in model.frozen)
    return model


def check_members(members: int, *networks: nn.Module | str | None) -> None:
    """Refuse given networks that would be the same in all members of an ensemble.

    To be called before the first of the members is trained.
    """
    for network in networks:
        if members > 1 and isinstance(network, nn.Module):
            with global_seed(0):
                _fresh(network, 1, several="members")


def _fresh(network: nn.Module, start: int, several: str = "restarts") -> nn.Module:
    """Return a copy of a given network, for every start after the first with new random weights.

    Frozen parts stay as they are.
    """
    copied = copy.deepcopy(network).cpu()
    if start == 0:
        return copied
    fresh = _renewed(copied, {})
    _restore_frozen(network, fresh)
    pairs = zip(network.parameters(), fresh.parameters(), strict=True)
    trained = [torch.equal(old.cpu(), new) for old, new in pairs if old.requires_grad]
    if trained and all(trained):
        raise InputError(
            f"{several}: expected 1 for a {type(network).__name__} without reset_parameters, got "
            "more: every start would be the same"
        )
    return fresh


def _restore_frozen(given: nn.Module, fresh: nn.Module) -> None:
    """Copy frozen parameters back into a renewed network.

    Also the buffers of parts that are frozen as a whole.
    """
    for name, parameter in given.named_parameters():
        if not parameter.requires_grad:
            fresh.get_parameter(name).requires_grad_(False).copy_(parameter)
    for name, part in given.named_modules():
        trainable = [parameter.requires_grad for parameter in part.parameters()]
        if trainable and not any(trainable):
            for label, buffer in part.named_buffers():
                fresh.get_submodule(name).get_buffer(label).copy_(buffer)


def _renewed(module: nn.Module, known: dict[nn.Module, nn.Module]) -> nn.Module:
    """Return a module with new random weights in all its parts.

    Our own networks are made again, for their constructors initialise them in their own way.

    Args:
        module: the module; weights are changed in place.
        known: what became of each module so far: a part that is shared stays shared.
    """
    if module in known:
        return known[module]
    description = describe_network(module)
    if description is not None:
        known[module] = make_network(description)
        return known[module]
    known[module] = module
    for name, part in module.named_children():
        setattr(module, name, _renewed(part, known))
    reset = getattr(module, "reset_parameters", None)
    if callable(reset):
        reset()
    return module
