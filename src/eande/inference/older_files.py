"""Files of earlier formats, brought to the present one.

Up to format 4 a similarity was named only, and an exponent and what else calibration found lay
among its own tensors; an exponent of 0 said that the fit had fallen back to the prior. In format 5
numbers that had been bent were not standardised again: the tensors of a standardiser say so by
their absence, and nothing is to be done.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from eande.foundations.checks import InputError
from eande.foundations.documents import as_document

# The last format in which a similarity was named only.
LAST_OF_NAMED_SIMILARITIES = 4
_CALIBRATION = ("exponent", "slope", "centre", "turn", "shift")


@dataclass
class _Older:
    """What had another form in the document of a model."""

    embedding_dimension: int
    similarity: str


@dataclass
class _OlderEnsemble:
    """The same, of an ensemble."""

    members: list[_Older]


def renamed(
    path: Path, document: dict[str, Any], tensors: dict[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a document and tensors of format 4 or older as the present format has them.

    Args:
        path: the file.
        document: what it says.
        tensors: its own, or stand-ins of the same shapes on the device "meta".
    """
    as_document(path, document, _OlderEnsemble if "members" in document else _Older)
    try:
        return _renamed(document, tensors)
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{path}: expected the tensors of a model of format {document.get('format')}, got "
            f"others ({error})"
        ) from None


def _renamed(
    document: dict[str, Any], tensors: dict[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if "members" not in document:
        return _one(document, tensors)
    members = []
    found: dict[str, Tensor] = {}
    for i, member in enumerate(document["members"]):
        prefix = f"member.{i}."
        own = {k.removeprefix(prefix): x for k, x in tensors.items() if k.startswith(prefix)}
        described, own = _one(member, own)
        members.append(described)
        found |= {f"{prefix}{name}": x for name, x in own.items()}
    rest = {k: x for k, x in tensors.items() if not k.startswith("member.")}
    rest.pop("similarity.lengths", None)  # of formats before 4
    described, rest = _around({"name": "mean ratio"}, rest, "similarity.")
    return {"members": members, "similarity": described}, found | rest


def _one(
    document: dict[str, Any], tensors: dict[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    dimension = document["embedding_dimension"]
    name = document["similarity"]
    settings: dict[str, Any] = {}
    if name == "cosine":
        learned = _value(tensors["model.similarity.log_temperature"].exp())
        settings = {"temperature": learned, "learn": False}
    if name == "dot":
        settings = {"dimension": dimension}
    if name == "gaussians":
        name = "mixture"
        bias = tensors.get("model.similarity.spread.bias", ())
        heads = max(1, len(bias) // (dimension + 2))
        settings = {"heads": heads, "dimension": dimension}
    described, tensors = _around({"name": name, "settings": settings}, tensors, "model.similarity.")
    return document | {"similarity": described}, tensors


def _around(
    similarity: dict[str, Any], tensors: dict[str, Tensor], prefix: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Put what calibration found, or a fall back to the prior, around a similarity."""
    found = {x: tensors[f"{prefix}{x}"] for x in _CALIBRATION if f"{prefix}{x}" in tensors}
    rest = {k: x for k, x in tensors.items() if k.removeprefix(prefix) not in found}
    exponent = _value(found.pop("exponent")) if "exponent" in found else 1.0
    if exponent == 0:
        return {"name": "prior only", "rejected": similarity}, _inside(rest, prefix, "rejected")
    if exponent == 1 and not found:
        return similarity, rest
    described = {
        "name": "calibrated",
        "inner": similarity,
        "slope": len(found["slope"]) if "slope" in found else None,
        "aim": len(found["shift"]) if "shift" in found else None,
    }
    kept = {f"{prefix}{k}": tensors[f"{prefix}{k}"] for k in ("exponent", *found)}
    return described, _inside(rest, prefix, "inner") | kept


def _inside(tensors: dict[str, Tensor], prefix: str, part: str) -> dict[str, Tensor]:
    """Return tensors of a similarity as those of a part of one."""
    return {
        f"{prefix}{part}.{k.removeprefix(prefix)}" if k.startswith(prefix) else k: x
        for k, x in tensors.items()
    }


def _value(tensor: Tensor) -> float:
    """Return the number in a tensor; of a stand-in, one that calls for all other tensors."""
    return 0.5 if tensor.is_meta else tensor.item()
