"""Loading a saved model: its file is read, checked and compared; nothing in it is executed."""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eande.foundations.checks import InputError, show_shape
from eande.foundations.files import read_tensors
from eande.inference.ensemble import ensemble
from eande.inference.model import EmbedAndEmulate
from eande.inference.older_files import renamed
from eande.inference.saving import FORMAT
from eande.networks.choose import make_network
from eande.networks.standardizer import Standardizer
from eande.priors.convert import as_prior, prior_from_description, same_law
from eande.priors.prior import Prior
from eande.similarities.calibrated import Calibrated
from eande.similarities.similarity import Similarity, similarity_from_description


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
        prior: the same prior again, if it is a function of your own or a Distribution outside
            torch's plain ones.
    """
    document, tensors = read_tensors(path, "model")
    if document["format"] > FORMAT:
        raise InputError(
            f"{path}: expected file format {FORMAT} or older, got {document['format']}: written by "
            "a newer eande"
        )
    if document["format"] < FORMAT:
        document, tensors = renamed(document, tensors)
    given = {"encoder": encoder, "emulator": emulator, "prior": prior}
    if "members" in document:
        return _load_ensemble(path, document, tensors, given)
    return _load_one(path, document, tensors, **given)


def _load_ensemble(
    path: str | Path, document: dict[str, Any], tensors: dict[str, Tensor], given: dict[str, Any]
) -> EmbedAndEmulate:
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        if part == "member":
            number, _, rest = rest.partition(".")
            part = f"member.{number}"
        parts.setdefault(part, {})[rest] = tensor
    own = [parts.pop(f"member.{i}", {}) for i in range(len(document["members"]))]
    similarity = parts.pop("similarity", {})
    if parts:
        stray = next(iter(parts))
        raise InputError(f"{path}: expected tensors of {len(own)} members, got {stray}, too")
    members = [
        _load_one(f"{path}, member {i}", *contents, **given)
        for i, contents in enumerate(zip(document["members"], own, strict=True))
    ]
    joint = ensemble(members)
    described = document["similarity"]
    if described["name"] == Calibrated.name:
        joint = joint.with_similarity(Calibrated.around(joint.similarity, described))
    load_weights(joint.similarity, similarity, path)
    return joint


def _load_one(
    path: str | Path,
    document: dict[str, Any],
    tensors: dict[str, Tensor],
    *,
    encoder: nn.Module | None,
    emulator: nn.Module | None,
    prior: Any,
) -> EmbedAndEmulate:
    weights = {k.removeprefix("model."): x for k, x in tensors.items() if k.startswith("model.")}
    model = EmbedAndEmulate(
        _stored_or_given("encoder", path, document["encoder"], encoder),
        _stored_or_given("emulator", path, document["emulator"], emulator),
        _make_similarity(document, path),
        _check_prior(path, document, tensors, prior),
        y_shape=document["y_shape"],
        embedding_dimension=document["embedding_dimension"],
        y_standardizer=_empty_standardizer(path, weights, "y_standardizer"),
        phi_standardizer=_empty_standardizer(path, weights, "phi_standardizer"),
    )
    load_weights(model, weights, path)
    for name, output in model.probes().items():
        expected = tensors.get(name)
        if expected is not None and not torch.allclose(output, expected, rtol=1e-2, atol=1e-3):
            raise InputError(
                f"{path}: expected the {name.removeprefix('probe.')} it was trained with, got one "
                "that computes something else"
            )
    model.history = document["history"]
    model.frozen = tuple(document.get("frozen", ()))
    # Older files do not know it.
    model.y_standardizer.largest = document.get("y_largest")
    return model.requires_grad_(False).eval()


def _make_similarity(document: dict[str, Any], path: str | Path) -> Similarity:
    try:
        return similarity_from_description(document["similarity"])
    except InputError as error:
        raise InputError(
            f"{path}: {error}; where it is a class of your own, import it first"
        ) from None


def _check_prior(
    path: str | Path, document: dict[str, Any], tensors: dict[str, Tensor], given: Any
) -> Prior:
    """Return the prior of a file, or the one handed over if it is the same law."""
    draws = {k.removeprefix("prior."): x for k, x in tensors.items() if k.startswith("prior.")}
    stored = prior_from_description(document["prior"], draws)
    if given is None and stored is None:
        raise InputError(
            f"{path}: expected prior=, the prior it was trained under, got None: that prior cannot "
            "be stored in a file"
        )
    if given is None or stored is None:
        return as_prior(stored if given is None else given)
    used = as_prior(given)
    if not same_law(stored, used):
        raise InputError(
            f"{path}: expected the prior it was trained under, or none, got another; "
            "posterior(y, prior=...) takes another prior"
        )
    return used


def load_weights(model: nn.Module, weights: dict[str, Tensor], path: str | Path) -> None:
    """Copy weights into a model of the same shape, or name the first leaf that does not fit."""
    own = model.state_dict()
    for name in sorted(own.keys() | weights.keys()):
        expected = show_shape(own[name].shape) if name in own else "nothing of that name"
        found = show_shape(weights[name].shape) if name in weights else "nothing of that name"
        if expected != found:
            raise InputError(
                f"{path}: {name}: expected {expected}, got {found} in the file; is it the same "
                "network?"
            )
    model.load_state_dict(weights)


def _stored_or_given(
    name: str, path: str | Path, stored: dict[str, Any] | None, given: nn.Module | None
) -> nn.Module:
    if given is not None:
        return copy.deepcopy(given)
    if stored is None:
        raise InputError(
            f"{path}: expected {name}=, the module it was trained with, got None: a network of "
            "your own cannot be stored in a file"
        )
    return make_network(stored)


def _empty_standardizer(path: str | Path, weights: dict[str, Tensor], name: str) -> Standardizer:
    if f"{name}.mean" not in weights or f"{name}.scale" not in weights:
        raise InputError(
            f"{path}: expected the tensors model.{name}.mean and model.{name}.scale, got neither "
            "or one"
        )
    limit = weights.get(f"{name}.limit")
    return Standardizer(weights[f"{name}.mean"], weights[f"{name}.scale"], limit)
