"""Preparing a fit: checking its arguments, splitting the simulations, checking the prior."""

import copy
import hashlib
import inspect
import math
import warnings
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from scipy import stats
from torch import Tensor, nn

from eande.foundations.checks import (
    EandeWarning,
    InputError,
    check_choice,
    check_flag,
    check_function,
    check_instance,
    check_share,
    show_shape,
)
from eande.foundations.paths import as_path
from eande.foundations.seeds import derive_seed, generator, global_seed
from eande.inference.model import EmbedAndEmulate, layers_of
from eande.inference.saving import probe
from eande.networks.choose import ENCODERS, kind_of_data
from eande.priors.convert import as_prior, law_fingerprint, named_as
from eande.priors.draws import EmpiricalPrior
from eande.priors.prior import Prior
from eande.simulation.read.simulations import Simulations, first_of_groups
from eande.simulation.read.sources import digest, take
from eande.simulation.read.views import View, fixed_views
from eande.simulation.store.provenance import describe_simulator
from eande.training.build import Networks, have_places
from eande.training.settings import FitSettings

# Fewer held-out simulations than this are warned about; more than the second are not held out by
# default: they choose the epoch no better, and scoring them takes as long as training.
_FEW_HELD_OUT = 10
_MOST_HELD_OUT = 2_000
# Parameters are compared with so many prior draws, along each axis and so many random directions.
_COMPARED = 10_000
_DIRECTIONS = 16
# A fingerprint has the views of so many data, of so many numbers in all (16 MB).
_VIEWED = 64
_NUMBERS_VIEWED = 4_000_000
# The probability that right parameters are warned about.
_FALSE_ALARM = 1e-6
# So many times more channels than places are taken for axes in another order.
_MANY_CHANNELS = 2


def check_encoder(encoder: Any) -> None:
    """Refuse what is neither a network nor one of the words for what data are."""
    if isinstance(encoder, str):
        check_choice("encoder", encoder, tuple(ENCODERS))
    else:
        check_instance(
            "encoder",
            encoder,
            nn.Module,
            "an nn.Module (an instance, not a class) or 'vector', 'series', 'grid' or 'set'",
            optional=True,
        )


def check_types(
    simulations: Any, settings: Any, validation: Any, networks: Networks, **given: Any
) -> None:
    """Refuse arguments of ``fit`` that are of a wrong type, before they fail somewhere inside."""
    check_instance(
        "simulations",
        simulations,
        Simulations,
        "Simulations (from arrays: Simulations.from_arrays(phi, y))",
    )
    check_instance("settings", settings, FitSettings, "FitSettings(...)")
    if not (validation is None or isinstance(validation, Simulations)):
        check_instance("validation", validation, Real, "a fraction or Simulations")
        check_share("validation", validation)
    check_encoder(networks.encoder)
    check_instance(
        "emulator",
        networks.emulator,
        nn.Module,
        "an nn.Module (an instance, not a class)",
        optional=True,
    )
    check_instance(
        "warm_start",
        networks.warm_start,
        EmbedAndEmulate,
        "a model (from a file: eande.load(path))",
        optional=True,
    )
    if given["views"] is not None:
        check_function("views", given["views"], "(y, generator)")
    if given["callback"] is not None:
        check_function("callback", given["callback"], "a record")
    check_flag("progress", given["progress"])
    if given["checkpoint"] is not None:
        as_path("checkpoint", given["checkpoint"], kind="folder")
    if settings.view_weight > 0 and given["views"] is None:
        raise InputError(f"view_weight: expected 0 without views=, got {settings.view_weight}")
    _check_gaps(simulations, validation, settings, networks)
    folder = given["checkpoint"]
    if folder is not None and folder.exists() and not folder.is_dir():
        raise InputError(f"checkpoint: expected a folder, got the file {folder}")
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "device: expected 'cpu' or 'auto' on a machine without a GPU that torch can use, got "
            "'cuda'"
        )


def _check_gaps(
    simulations: Simulations, validation: Any, settings: FitSettings, networks: Networks
) -> None:
    """Refuse missing numbers where nothing was said of them, or where no network takes them."""
    masked = settings.missing == "mask"
    if networks.warm_start is not None:
        if networks.warm_start.takes_gaps != masked:
            raise InputError(
                "missing: expected that of the warm start, got another: its encoder takes "
                f"{'gaps' if not masked else 'no gaps'}"
            )
    elif (
        masked
        and isinstance(networks.encoder, nn.Module)
        and not getattr(networks.encoder, "gaps", False)
    ):
        raise InputError(
            "missing: expected an encoder with an attribute gaps = True, which takes NaN, for "
            f"'mask', got a {type(networks.encoder).__name__} without"
        )
    for name, given in (("simulations", simulations), ("validation", validation)):
        # Of data that lie elsewhere NaN is refused as they are read.
        if masked or not isinstance(given, Simulations) or not isinstance(given.y, Tensor):
            continue
        # A sum takes no memory; infinite numbers of both signs make NaN of it, too.
        if given.y.sum().isnan() and given.y.isnan().any():
            raise InputError(
                f"{name}: expected data without NaN, got {int(given.y.isnan().sum())}: "
                "FitSettings(missing='mask') takes them for numbers that are missing"
            )


def check_axes(shape: Sequence[int], encoder: nn.Module | str | None) -> None:
    """Warn where an axis of time or space seems to be taken for that of channels.

    Args:
        shape: of one datum as the encoder sees it.
        encoder: as for :func:`eande.fit`.
    """
    if isinstance(encoder, nn.Module) or not have_places(torch.Size(shape), encoder):
        return
    kind = kind_of_data(shape, encoder)
    axes = {"series": "(channels, length)", "grid": "(channels, height, width)"}[kind]
    if len(shape) < len(axes.split()) or shape[0] <= _MANY_CHANNELS * shape[-1]:
        return
    warnings.warn(
        f"data of shape {show_shape(shape)} are taken for {axes}: a {kind} of {shape[0]} channels; "
        "if channels come last, move them to the front, else pass encoder='vector' or 'set'",
        EandeWarning,
        stacklevel=3,
    )


def split(
    simulations: Simulations, validation: float | Simulations | None, seed: int
) -> tuple[Simulations, Simulations]:
    """Return the simulations to train on and those to hold out."""
    if isinstance(validation, Simulations):
        expected = (simulations.phi.shape[1], simulations.y_shape)
        got = (validation.phi.shape[1], validation.y_shape)
        if got != expected:
            raise InputError(
                f"validation: expected phi of dimension {expected[0]} and y of shape "
                f"{expected[1]}, got {got[0]} and {got[1]}"
            )
        train = simulations
        held_out = validation
    else:
        if validation is None:
            groups = len(simulations.groups.unique())
            validation = min(0.1, _MOST_HELD_OUT / max(1, groups))
        train, held_out = simulations.split(validation, seed=seed)
    distinct = len(train.groups.unique())
    if distinct < 2:
        raise InputError(
            "simulations: expected at least 2 different parameters to train on (a batch needs a "
            f"negative), got {distinct}"
        )
    if len(held_out) < _FEW_HELD_OUT:
        few = "1 simulation is" if len(held_out) == 1 else f"{len(held_out)} simulations are"
        warnings.warn(
            f"only {few} held out: the best epoch is chosen by chance",
            EandeWarning,
            stacklevel=3,
        )
    return train, held_out


def training_prior(prior: Any, simulations: Simulations, validation: Any) -> Prior:
    """Return the prior, checked against the parameters of all simulations.

    Where it is None, the parameters of all simulations, failed ones too, serve as its draws.
    """
    # One row per group, as in training: replicates do not make their parameters more probable.
    phi = simulations.phi[first_of_groups(simulations.groups)]
    drawn = torch.cat([phi, simulations.failures.phi])
    if prior is None:
        return EmpiricalPrior(drawn, names=simulations.names)
    known = as_prior(prior)
    if known.dimension != simulations.phi.shape[1]:
        raise InputError(
            f"phi: expected {known.dimension} parameters as in the prior, got "
            f"{simulations.phi.shape[1]}"
        )
    known = named_as(known, simulations.names)
    _check_inside("phi", simulations.phi, known)
    _check_inside("failures", simulations.failures.phi, known)
    if isinstance(validation, Simulations):
        _check_inside("validation", validation.phi, known)
    _compare_with_prior(drawn, known)
    return known


def _check_inside(name: str, phi: Tensor, prior: Prior) -> None:
    """Refuse parameters outside the prior's support."""
    outside = (~prior.contains(phi)).nonzero()[:, 0]
    if len(outside):
        first = int(outside[0])
        raise InputError(
            f"{name}: expected every row inside the prior's support, got {len(outside)} outside, "
            f"the first at index {first}: {phi[first].tolist()}"
        )


def _compare_with_prior(phi: Tensor, prior: Prior) -> None:
    """Warn where parameters do not look like draws of the prior.

    By Kolmogorov–Smirnov tests of each parameter and of some random projections, with Bonferroni's
    correction.
    """
    drawn = prior.sample(_COMPARED, seed=derive_seed(0, "compared")).double()
    rows = torch.linspace(0, len(phi) - 1, min(len(phi), _COMPARED)).round().long()
    phi = phi[rows].double()
    stream = generator(0, "directions")
    random = torch.randn(prior.dimension, _DIRECTIONS, generator=stream, dtype=torch.float64)
    random = random / drawn.std(0).clamp(min=1e-30).unsqueeze(1)
    directions = torch.cat([torch.eye(prior.dimension, dtype=torch.float64), random], dim=1)
    projected = zip((phi @ directions).T.numpy(), (drawn @ directions).T.numpy(), strict=True)
    p_values = [stats.ks_2samp(*pair).pvalue for pair in projected]
    for direction, p_value in enumerate(p_values):
        if p_value * len(p_values) >= _FALSE_ALARM:
            continue
        if direction < prior.dimension:
            where = f"in {prior.names[direction]}"
        else:
            where = "in their joint distribution"
        warnings.warn(
            "phi: the parameters of the simulations do not look like draws of the prior "
            f"({where}; Kolmogorov–Smirnov p = {p_value:.1g}), and posteriors are wrong where they "
            "are not: pass the prior they were drawn from, or None for their own distribution; "
            "simulations that failed belong to them (failed_phi)",
            EandeWarning,
            stacklevel=4,
        )
        return


def call_fingerprint(
    simulations: Simulations,
    prior: Prior,
    settings: FitSettings,
    views: View | None,
    networks: Networks,
    validation: float | Simulations | None,
) -> dict[str, Any]:
    """Describe a call of ``fit`` as values for JSON; only the same call resumes a checkpoint."""
    # Some data from everywhere: a view may leave many as they are.
    numbers = math.prod(simulations.y_shape)
    count = max(1, min(len(simulations), _VIEWED, _NUMBERS_VIEWED // numbers))
    viewed = torch.linspace(0, len(simulations) - 1, count).long()
    seen = next(fixed_views(views, take(simulations.y, viewed)))
    described = {
        f"settings.{name}": value
        for name, value in settings.describe().items()
        if name != "checkpoint_seconds"
    }
    described |= {
        "simulations": simulations.fingerprint(),
        "prior": law_fingerprint(prior),
        "views": digest(seen),
        "settings of views": _describe_view(views),
        "validation": validation,
    }
    if isinstance(validation, Simulations):
        described["validation"] = validation.fingerprint()
    described["encoder"] = _describe_network(networks.encoder, seen.shape[1:])
    described["emulator"] = _describe_network(networks.emulator, (prior.dimension,))
    described["warm_start"] = None
    if networks.warm_start is not None:
        # Its guide does not go on.
        weights = sorted(networks.warm_start.with_guide(None).state_dict().items())
        probes = networks.warm_start.probes().values()
        described["warm_start"] = digest(*(x for _, x in weights), *probes)
    return described


def _describe_view(view: View | None) -> dict[str, Any] | None:
    """Describe the settings of a view; functions, which may keep count, by what they do alone."""
    if view is None or inspect.isfunction(view):
        return None
    return {key: value for key, value in describe_simulator(view).items() if key != "name"}


def _describe_network(
    network: nn.Module | str | None, shape: Sequence[int]
) -> dict[str, str] | str | None:
    """Describe a given network: its parts, its weights, and what it makes of fixed inputs.

    In training it may do something else than after, so that both are looked at.
    """
    if network is None or isinstance(network, str):
        return network
    weights = [x for _, x in sorted(network.state_dict().items())]
    described = {"parts": hashlib.sha256(layers_of(network).encode()).hexdigest()[:16]}
    cpu = torch.device("cpu")
    try:
        copied = copy.deepcopy(network).cpu()
        after = probe(copied.eval(), shape, cpu)
        with global_seed(0, "probe"):
            during = probe(copied.train(), shape, cpu)
    except (RuntimeError, ValueError, TypeError, IndexError):
        # What cannot run is refused, with the reason, when the model is built.
        return described | {"weights": digest(*weights)}
    return described | {"weights": digest(*weights), "outputs": digest(after, during)}
