"""Loading a saved model: its file is read, checked and compared; nothing in it is executed.

What the document says is compared with the shapes of the tensors before any of them is read, and
before anything of that size is made: networks are built on torch's device "meta" for it, whose
tensors have a shape and no memory.
"""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

import eande.inference.regions  # noqa: F401 - that files with a truncated prior find it
from eande.foundations.checks import InputError, check_instance, check_shape, show, show_shape
from eande.foundations.documents import as_document, one_line
from eande.foundations.files import Shapes, read_tensors
from eande.foundations.paths import as_path
from eande.inference.ensemble import MeanRatio, ensemble
from eande.inference.guide_network import GuideNetwork, GuideSettings
from eande.inference.model import EmbedAndEmulate
from eande.inference.older_files import LAST_OF_NAMED_SIMILARITIES, renamed
from eande.inference.saving import (
    FORMAT,
    EnsembleFile,
    ModelDocument,
    ModelFile,
    WindowsDocument,
)
from eande.inference.views import EvenWindows, MeanOfViews, combine_views
from eande.inference.weights import check_numbers, check_weights, load_weights
from eande.networks.choose import NetworkDescription, outline_network, without_memory
from eande.networks.standardizer import Standardizer
from eande.priors.convert import (
    as_prior,
    described_names,
    named_as,
    prior_from_description,
    same_law,
)
from eande.priors.prior import Prior
from eande.similarities.calibrated import Calibrated
from eande.similarities.similarity import Similarity, similarity_from_description

Tensors = dict[str, Tensor]
Part = TypeVar("Part", bound=nn.Module)
# Numbers that a file may hold of a prior: 1 GB.
_LARGEST_PRIOR = 2**28


class AnotherPrior(InputError):
    """The prior handed over is not the one that a model was trained under."""


class _Given(NamedTuple):
    """What the user passes again because no file holds it; None for what was not passed."""

    encoder: nn.Module | None
    emulator: nn.Module | None
    prior: Any


class _Outline(NamedTuple):
    """The parts of a model: as handed over, or as described and still without memory."""

    encoder: nn.Module
    emulator: nn.Module
    similarity: Similarity
    guide: GuideNetwork | None


class _Stored(NamedTuple):
    """A single model in a file, or a member.

    Args:
        where: the file, and which member.
        document: what it says.
        tensors: its own.
    """

    where: str
    document: ModelDocument
    tensors: Tensors


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

    Example:
        >>> path = folder / "model.eande"
        >>> model.save(path)
        >>> load(path).prior.names
        ('slope', 'offset')
    """
    path = as_path("path", path)
    for name, network in (("encoder", encoder), ("emulator", emulator)):
        check_instance(
            name, network, nn.Module, "an nn.Module (an instance, not a class)", optional=True
        )
    given = _Given(encoder, emulator, prior)
    checked: list[_Outline] = []

    def check(document: dict[str, Any], shapes: Shapes) -> None:
        stand_ins = {name: torch.empty(x, device="meta") for name, x in shapes.items()}
        checked.extend(_outlines(path, *_current(path, document, stand_ins), given))

    document, tensors = read_tensors(path, "model", check)
    known, tensors = _current(path, document, tensors)
    # In older files numbers, too, tell what a similarity is.
    outlines = checked if document["format"] == FORMAT else _outlines(path, known, tensors, given)
    of_views, tensors = _apart(known, tensors)
    if isinstance(known, ModelFile):
        model = _load_one(_Stored(str(path), known, tensors), outlines[0], given)
    else:
        model = _load_ensemble(path, known, tensors, outlines, given)
    return model if known.windows is None else _combine(path, model, known.windows, of_views)


def read_model_document(path: str | Path) -> ModelFile | EnsembleFile:
    """Return what a model's file says of it; networks of the user's are not needed for that.

    Args:
        path: what ``model.save`` wrote.
    """
    path = as_path("path", path)
    return _current(path, *read_tensors(path, "model"))[0]


def _current(
    path: Path, document: dict[str, Any], tensors: Tensors
) -> tuple[ModelFile | EnsembleFile, Tensors]:
    """Return document and tensors in the present format, the former as declared."""
    found = document.get("format")
    if type(found) is not int or not found >= 1:
        raise InputError(f"{path}: format: expected a whole number, got {show(found)}")
    if found > FORMAT:
        raise InputError(
            f"{path}: expected file format {FORMAT} or older, got {found}: written by a newer eande"
        )
    if found <= LAST_OF_NAMED_SIMILARITIES:
        document, tensors = renamed(path, document, tensors)
    if "members" in document:
        return as_document(path, document, EnsembleFile), tensors
    return as_document(path, document, ModelFile), tensors


def _outlines(
    path: Path, known: ModelFile | EnsembleFile, tensors: Tensors, given: _Given
) -> list[_Outline]:
    """Compare what a file says with the shapes of its tensors; return the parts of each model."""
    of_views, tensors = _apart(known, tensors)
    if known.windows is not None:
        _check_calibration(path, known.windows.similarity, of_views)
    if isinstance(known, ModelFile):
        return [_check_sizes(_Stored(str(path), known, tensors), given)]
    guide, tensors = _guide_apart(known, tensors)
    members, similarity = _members(path, known, tensors)
    outlines = [_check_sizes(member, given) for member in members]
    _check_calibration(path, known.similarity, similarity)
    outline = _outline_guide(known.guide)
    own = {} if outline is None else outline.state_dict()
    check_weights(f"{path}: guide", own, _under("guide", guide))
    return outlines


def _apart(known: ModelFile | EnsembleFile, tensors: Tensors) -> tuple[Tensors, Tensors]:
    """Return the tensors of what combines windows, and all others."""
    if known.windows is None:
        return {}, tensors
    own = _under("windows", tensors)
    return own, {name: x for name, x in tensors.items() if not name.startswith("windows.")}


def _guide_apart(known: EnsembleFile, tensors: Tensors) -> tuple[Tensors, Tensors]:
    """Return the tensors of an ensemble's guide, and all others."""
    own = {name: x for name, x in tensors.items() if name.startswith("guide.")}
    return own, {name: x for name, x in tensors.items() if name not in own}


def _check_calibration(path: Path, said: Mapping[str, Any], similarity: Tensors) -> None:
    """Compare what a file says of a calibration with the shapes of its tensors."""
    if sum(x.numel() for x in similarity.values()) > _LARGEST_PRIOR:
        raise InputError(f"{path}: expected tensors of a similarity, got far larger ones")
    for name, tensor in (("slope", "slope"), ("aim", "shift")):
        size = said.get(name)
        found = similarity.get(tensor)
        if size is not None and (found is None or found.shape != (size,)):
            raise InputError(
                f"{path}: similarity: expected {name} of its tensors, got {show(size)}"
            )


def _members(path: Path, document: EnsembleFile, tensors: Tensors) -> tuple[list[_Stored], Tensors]:
    """Return the members of an ensemble, and the tensors of its similarity."""
    parts: dict[str, Tensors] = {}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        if part == "member":
            number, _, rest = rest.partition(".")
            part = f"member.{number}"
        parts.setdefault(part, {})[rest] = tensor
    own = [parts.pop(f"member.{i}", {}) for i in range(len(document.members))]
    similarity = parts.pop("similarity", {})
    if parts:
        stray = next(iter(parts))
        raise InputError(f"{path}: expected tensors of {len(own)} members, got {show(stray)}, too")
    members = [
        _Stored(f"{path}, member {i}", *contents)
        for i, contents in enumerate(zip(document.members, own, strict=True))
    ]
    return members, similarity


def _load_ensemble(
    path: Path,
    document: EnsembleFile,
    tensors: Tensors,
    outlines: Sequence[_Outline],
    given: _Given,
) -> EmbedAndEmulate:
    of_guide, tensors = _guide_apart(document, tensors)
    members, similarity = _members(path, document, tensors)
    try:
        both = zip(members, outlines, strict=True)
        joint = ensemble([_load_one(member, outline, given) for member, outline in both])
        joint = _calibrated(joint, document.similarity, MeanRatio.name)
    except InputError as error:
        # A member's refusal names the file already.
        told = str(error)
        raise InputError(told if told.startswith(str(path)) else f"{path}: {told}") from None
    load_weights(joint.similarity, similarity, path)
    _check_similarity(str(path), joint.similarity, joint.embedding_dimension)
    return _with_guide(str(path), joint, _outline_guide(document.guide), of_guide)


def _combine(
    path: Path, model: EmbedAndEmulate, document: WindowsDocument, tensors: Tensors
) -> EmbedAndEmulate:
    """Return the model that combines windows, given that of one of them."""
    try:
        windows = EvenWindows(document.length, document.count, axis=document.axis)
        joint = combine_views(model, document.y_shape, windows)
        joint = _calibrated(joint, document.similarity, MeanOfViews.name)
    except InputError as error:
        raise InputError(f"{path}: windows: {error}") from None
    load_weights(joint.similarity, tensors, path)
    _check_similarity(
        str(path), joint.similarity, joint.embedding_dimension, model.embedding_dimension
    )
    return joint


def _calibrated(joint: EmbedAndEmulate, description: dict[str, Any], name: str) -> EmbedAndEmulate:
    """Return a joint model with the calibration that a file describes, if it does.

    Args:
        joint: the model as it is joined, without one.
        description: of the similarity in the file.
        name: of its similarity without one.
    """
    found = description.get("name")
    if found == Calibrated.name:
        return joint.with_similarity(Calibrated.around(joint.similarity, description))
    if found != name:
        raise InputError(f"similarity: expected {name!r} or {Calibrated.name!r}, got {show(found)}")
    return joint


def _check_sizes(stored: _Stored, given: _Given) -> _Outline:
    """Compare what a document says with the shapes of the tensors, without making any."""
    where, document, tensors = stored
    stray = [name for name in tensors if not name.startswith(("model.", "prior.", "probe."))]
    if stray:
        raise InputError(f"{where}: expected tensors of a model, got {show(stray[0])}, too")
    weights = _under("model", tensors)
    with torch.device("meta"):
        similarity = _make_similarity(document, where)
    outline = _Outline(
        _outline("encoder", where, document.encoder, given.encoder),
        _outline("emulator", where, document.emulator, given.emulator),
        similarity,
        _outline_guide(document.guide),
    )
    parts = {name: part for name, part in outline._asdict().items() if part is not None}.items()
    own = {f"{part}.{k}": x for part, one in parts for k, x in one.state_dict().items()}
    of_y = _standardizing(where, weights, "y_standardizer")
    of_phi = _standardizing(where, weights, "phi_standardizer")
    _check_broadcast(where, of_y, document.y_shape)
    own |= {f"y_standardizer.{name}": x for name, x in of_y.items()}
    own |= {f"phi_standardizer.{name}": x for name, x in of_phi.items()}
    check_weights(where, own, weights)
    others = [*_under("prior", tensors).values(), *of_phi.values()]
    if sum(x.numel() for x in others) > _LARGEST_PRIOR:
        raise InputError(f"{where}: expected tensors of a prior, got far larger ones")
    for name, tensor in _under("probe", tensors).items():
        if name not in ("encoder", "emulator"):
            raise InputError(f"{where}: expected tensors of a model, got {show(name)}, too")
        check_shape(f"{where}: probe.{name}", tensor, (2, document.embedding_dimension))
    return outline


def _load_one(stored: _Stored, outline: _Outline, given: _Given) -> EmbedAndEmulate:
    where, document, tensors = stored
    weights = _under("model", tensors)
    prior = _check_prior(stored, given.prior)
    of_phi = _standardizing(where, weights, "phi_standardizer")
    _check_broadcast(where, of_phi, (prior.dimension,))
    of_y = _standardizing(where, weights, "y_standardizer")
    for name, found in (("y_standardizer", of_y), ("phi_standardizer", of_phi)):
        check_numbers(f"{where}: {name}", found, found)
    try:
        model = EmbedAndEmulate(
            _filled("encoder", where, outline.encoder, given.encoder, weights),
            _filled("emulator", where, outline.emulator, given.emulator, weights),
            _filled("similarity", where, outline.similarity, None, weights),
            prior,
            y_shape=document.y_shape,
            embedding_dimension=document.embedding_dimension,
            y_standardizer=Standardizer.of(of_y),
            phi_standardizer=Standardizer.of(of_phi),
            # Below, by what the file holds of their outputs.
            run_once=False,
        )
        _check_similarity(where, model.similarity, model.embedding_dimension)
        _check_networks(where, model, stored)
    except InputError as error:
        told = str(error)
        raise InputError(told if told.startswith(where) else f"{where}: {told}") from None
    model.history = document.history
    model.tried = document.tried
    model.frozen = tuple(document.frozen)
    model.trained_on = tuple(document.trained_on)
    model.y_standardizer.largest = document.y_largest
    return _with_guide(where, model.requires_grad_(False), outline.guide, weights)


def _check_networks(where: str, model: EmbedAndEmulate, stored: _Stored) -> None:
    """Refuse networks that compute something else than those of the file did."""
    same = {
        name.removeprefix("probe."): name not in stored.tensors
        or torch.allclose(output, stored.tensors[name].to(output.dtype), rtol=1e-2, atol=1e-3)
        for name, output in model.probes().items()
    }
    own = model.parts()
    same |= {name: own.get(name, text) == text for name, text in stored.document.parts.items()}
    for name, is_same in same.items():
        if not is_same:
            raise InputError(
                f"{where}: expected the {name} it was trained with, got one that computes "
                "something else"
            )


def _outline_guide(settings: GuideSettings | None) -> GuideNetwork | None:
    """Return the guide that a file describes, without memory."""
    if settings is None:
        return None
    with without_memory():
        return GuideNetwork(settings)


def _with_guide(
    where: str, model: EmbedAndEmulate, outline: GuideNetwork | None, weights: Tensors
) -> EmbedAndEmulate:
    """Return a model with the guide of its file, whose weights lie under its name."""
    if outline is None:
        return model
    guide = _filled("guide", where, outline, None, weights)
    guide.check_scales(where)
    try:
        return model.with_guide(guide.requires_grad_(False).eval())
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _under(part: str, tensors: Tensors) -> Tensors:
    """Return the tensors of a part of a file, by their names in it."""
    prefix = f"{part}."
    return {k.removeprefix(prefix): x for k, x in tensors.items() if k.startswith(prefix)}


def _make_similarity(document: ModelDocument, where: str) -> Similarity:
    try:
        return similarity_from_description(document.similarity)
    except InputError as error:
        raise InputError(
            f"{where}: {error}; where it is a class of your own, import it first"
        ) from None
    except RecursionError:
        raise InputError(f"{where}: similarity: expected a few levels, got too many") from None


def _check_similarity(
    where: str, similarity: Similarity, dimension: int, of_phi: int | None = None
) -> None:
    """Refuse a similarity that cannot score embeddings of that dimension.

    Those of parameters may have another, where several views lie side by side.
    """
    numbers = (*similarity.parameters(), *similarity.buffers())
    device = next((x.device for x in numbers), None)
    try:
        with torch.no_grad():
            points = similarity.place(torch.zeros(2, dimension, device=device))
            others = similarity.place(torch.zeros(2, of_phi or dimension, device=device))
            scores = similarity.score(points, others)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise InputError(
            f"{where}: similarity: expected one for embeddings of dimension {dimension}, got "
            f"another ({one_line(error)})"
        ) from None
    check_shape(f"{where}: scores of the similarity", scores, (2, 2))


def _check_prior(stored: _Stored, given: Any) -> Prior:
    """Return the prior of a file, or the one handed over if it is the same law."""
    where, document, tensors = stored
    try:
        kept = prior_from_description(document.prior, _under("prior", tensors))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except (LookupError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        # What the class of a user's makes of a description, and what torch makes of numbers.
        raise InputError(
            f"{where}: prior: expected a description of one, got another ({one_line(error)})"
        ) from error
    if given is None and kept is None:
        raise InputError(
            f"{where}: expected prior=, the prior it was trained under, got None: that prior "
            "cannot be stored in a file"
        )
    if given is None:
        return as_prior(kept)
    used = as_prior(given)
    if kept is not None and not same_law(kept, used):
        raise AnotherPrior(
            f"{where}: expected the prior it was trained under, or none, got another; "
            "posterior(y, prior=...) takes another prior"
        )
    # The names may have come from the simulations.
    names = described_names(where, document.prior, used.dimension)
    return named_as(used, names, f"{where}: prior")


def _outline(
    name: str, where: str, stored: NetworkDescription | None, given: nn.Module | None
) -> nn.Module:
    """Return the network handed over or, without one, the one described, without memory."""
    if given is not None:
        return given
    if stored is None:
        raise InputError(
            f"{where}: expected {name}=, the module it was trained with, got None: a network of "
            "your own cannot be stored in a file"
        )
    try:
        return outline_network(stored)
    except InputError as error:
        raise InputError(f"{where}: {name}: {error}") from None


def _filled(name: str, where: str, outline: Part, given: Part | None, weights: Tensors) -> Part:
    """Return a copy of the part handed over or, without one, the outline, with its weights."""
    found = _under(name, weights)
    part = outline if given is None else copy.deepcopy(given)
    own = part.state_dict()
    check_numbers(f"{where}: {name}", own, found)
    # What has no memory takes that of the tensors; what was handed over stays where it is.
    without = any(x.is_meta for x in own.values())
    part.load_state_dict({k: x.to(own[k].dtype) for k, x in found.items()}, assign=without)
    return part


def _standardizing(where: str, weights: Tensors, name: str) -> Tensors:
    """Return the tensors of a standardiser."""
    found = {k: weights[f"{name}.{k}"] for k in Standardizer.NAMES if f"{name}.{k}" in weights}
    if "mean" not in found or "scale" not in found:
        raise InputError(
            f"{where}: expected the tensors model.{name}.mean and model.{name}.scale, got neither "
            "or one"
        )
    if not all(x.is_floating_point() for x in found.values()):
        raise InputError(f"{where}: {name}: expected floating-point numbers, got others")
    return found


def _check_broadcast(where: str, standardizing: Tensors, shape: Sequence[int]) -> None:
    """Refuse a standardiser whose numbers do not go with data of that shape."""
    for name, tensor in standardizing.items():
        last = tensor.shape[::-1]
        fits = len(last) <= len(shape) and all(
            size in (1, wanted) for size, wanted in zip(last, shape[::-1], strict=False)
        )
        if not fits:
            raise InputError(
                f"{where}: {name} of a standardiser: expected a shape that goes with data of shape "
                f"{show_shape(shape)}, got {show_shape(tensor.shape)}"
            )
