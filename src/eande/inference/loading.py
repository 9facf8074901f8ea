"""Loading a saved model: its file is read, checked and compared with what it says; nothing in it is executed."""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent

from eande.foundations.checks import InputError, show_shape
from eande.foundations.files import read_tensors
from eande.inference.ensemble import ensemble
from eande.inference.model import EmbedAndEmulate
from eande.inference.saving import FORMAT, probe
from eande.networks.choose import make_network
from eande.networks.standardizer import Standardizer
from eande.priors.box import BoxPrior
from eande.priors.convert import as_prior
from eande.priors.distribution import STORED_DISTRIBUTIONS, DistributionPrior
from eande.priors.draws import EmpiricalPrior
from eande.priors.prior import Prior
from eande.similarities.similarities import make_similarity
from eande.similarities.similarity import Aim


def load(
    path: str | Path,
    *,
    encoder: nn.Module | None = None,
    emulator: nn.Module | None = None,
    prior: Any = None,
) -> EmbedAndEmulate:
    """Load a saved model.

    Args:
        path: what ``model.save`` wrote.
        encoder: the same module again, if the model was trained with one of your own.
        emulator: likewise.
        prior: the same prior again, if it is a function of your own or a Distribution outside torch's plain ones.
    """
    document, tensors = read_tensors(path, "model")
    if document["format"] > FORMAT:
        raise InputError(
            f"{path}: expected file format {FORMAT} or older, got {document['format']}: written by a newer eande"
        )
    options = {"encoder": encoder, "emulator": emulator, "prior": prior}
    if "members" not in document:
        return _load_one(path, document, tensors, **options)
    prefixes = [f"member.{i}." for i in range(len(document["members"]))]
    own = [
        {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}
        for prefix in prefixes
    ]
    strays = [name for name in tensors if not name.startswith((*prefixes, "similarity."))]
    if strays:
        raise InputError(
            f"{path}: expected tensors of {len(prefixes)} members, got {strays[0]}, too"
        )
    contents = enumerate(zip(document["members"], own, strict=True))
    joint = ensemble([_load_one(f"{path}, member {i}", *one, **options) for i, one in contents])
    calibration = {
        name.removeprefix("similarity."): x
        for name, x in tensors.items()
        if name.startswith("similarity.")
    }
    calibration.pop("lengths", None)  # of formats before 4
    _expect_calibration(joint, calibration)
    load_weights(joint.similarity, calibration, path)
    return joint


def _load_one(
    path: str | Path,
    document: dict[str, Any],
    tensors: dict[str, Tensor],
    *,
    encoder: Any,
    emulator: Any,
    prior: Any,
) -> EmbedAndEmulate:
    draws = tensors.pop("prior.draws", None)
    expected = {
        name: tensors.pop(name) for name in ("probe.encoder", "probe.emulator") if name in tensors
    }
    stored = prior_from_description(document["prior"], draws)
    used_prior = stored if prior is None else as_prior(prior)
    if stored is not None and used_prior is not None and not _same_law(stored, used_prior):
        raise InputError(
            f"{path}: expected the prior it was trained under, or none, got another; posterior(y, prior=...) takes another prior"
        )
    if used_prior is None:
        raise InputError(
            f"{path}: expected prior=, the prior it was trained under, got None: that prior cannot be stored in a file"
        )
    dimension = document["embedding_dimension"]
    heads = max(1, len(tensors.get("model.similarity.spread.bias", ())) // (dimension + 2))
    model = EmbedAndEmulate(
        _stored_or_given("encoder", path, document["encoder"], encoder),
        _stored_or_given("emulator", path, document["emulator"], emulator),
        make_similarity(document["similarity"], 1.0, dimension, heads),
        used_prior,
        y_shape=document["y_shape"],
        embedding_dimension=dimension,
        y_standardizer=_empty_standardizer(path, tensors, "model.y_standardizer"),
        phi_standardizer=_empty_standardizer(path, tensors, "model.phi_standardizer"),
    )
    _expect_calibration(
        model, {name.removeprefix("model.similarity."): tensor for name, tensor in tensors.items()}
    )
    load_weights(
        model, {name.removeprefix("model."): tensor for name, tensor in tensors.items()}, path
    )
    for name, output in probe(model).items():
        if name in expected and not torch.allclose(output, expected[name], rtol=1e-2, atol=1e-3):
            raise InputError(
                f"{path}: expected the {name.removeprefix('probe.')} it was trained with, got one that computes something else"
            )
    model.history, model.frozen = document["history"], tuple(document.get("frozen", ()))
    return model.requires_grad_(False).eval()


def _same_law(first: Prior, second: Prior) -> bool:
    """Return whether two priors give the same densities to draws of both, or the same draws where they have none."""
    if first.dimension != second.dimension or first.has_density != second.has_density:
        return False
    draws = [prior.sample(8, seed=0) for prior in (first, second)]
    if not first.has_density:
        return torch.equal(*draws)
    return torch.allclose(
        first.log_prob(torch.cat(draws)), second.log_prob(torch.cat(draws)), rtol=1e-3, atol=1e-3
    )


def load_weights(model: nn.Module, weights: dict[str, Tensor], path: str | Path) -> None:
    """Copy weights into a model of the same shape, or name the first leaf that does not fit."""
    own = model.state_dict()
    for name in sorted(own.keys() | weights.keys()):
        expected = show_shape(own[name].shape) if name in own else "nothing of that name"
        found = show_shape(weights[name].shape) if name in weights else "nothing of that name"
        if expected != found:
            raise InputError(
                f"{path}: {name}: expected {expected}, got {found} in the file; is it the same network?"
            )
    model.load_state_dict(weights)


def _stored_or_given(
    name: str, path: str | Path, stored: dict[str, Any] | None, given: nn.Module | None
) -> nn.Module:
    if given is not None:
        return copy.deepcopy(given)
    if stored is None:
        raise InputError(
            f"{path}: expected {name}=, the module it was trained with, got None: a network of your own cannot be stored in a file"
        )
    return make_network(stored)


def _expect_calibration(model: EmbedAndEmulate, stored: dict[str, Tensor]) -> None:
    """Make room for what the file holds of a calibration."""
    n = model.embedding_dimension
    if "slope" in stored:
        model.similarity.set_exponent(1.0, torch.zeros(n), torch.zeros(n))
    if "turn" in stored:
        model.similarity.set_aim(Aim(torch.zeros(n, n), torch.zeros(n)))


def _empty_standardizer(path: str | Path, tensors: dict[str, Tensor], name: str) -> Standardizer:
    if f"{name}.mean" not in tensors or f"{name}.scale" not in tensors:
        raise InputError(
            f"{path}: expected the tensors {name}.mean and {name}.scale, got neither or one"
        )
    return Standardizer(
        tensors[f"{name}.mean"], tensors[f"{name}.scale"], tensors.get(f"{name}.limit")
    )


def prior_from_description(description: dict[str, Any], draws: Tensor | None) -> Prior | None:
    """Make the prior a file describes; None where it has to be handed over again."""
    kind, names = description["kind"], description["names"]
    if kind == "box":
        return BoxPrior(description["low"], description["high"], names=names)
    if kind == "empirical":
        return EmpiricalPrior(draws, names=names)
    if kind == "distribution" and description["distribution"] is not None:
        return DistributionPrior(_make_distribution(description["distribution"]), names=names)
    return None


def _make_distribution(description: dict[str, Any]) -> Distribution:
    name = description["name"]
    if name == "Independent":
        return Independent(_make_distribution(description["base"]), description["dimensions"])
    if name not in STORED_DISTRIBUTIONS:
        raise InputError(
            f"prior: expected one of torch's own distributions in the file, got {name!r}"
        )
    double = description.get("double", ())
    arguments = {
        key: torch.tensor(x, dtype=torch.float64 if key in double else torch.float32)
        for key, x in description["arguments"].items()
    }
    made: Distribution = getattr(torch.distributions, name)(**arguments)
    return made
