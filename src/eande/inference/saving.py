"""Saving a model: one file of tensors and JSON, which :mod:`eande.inference.loading` reads."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eande.foundations.checks import InputError, check_at_least, check_count
from eande.foundations.documents import as_json
from eande.foundations.files import write_tensors
from eande.inference.guide_network import GuideSettings
from eande.inference.trained_on import KEPT
from eande.networks.choose import NetworkDescription

# 5: similarities are described by name and settings, calibration is a similarity around another.
# 6: numbers that were bent are standardised again.
# 7: models may have a guide.
FORMAT = 7
# Numbers of one datum, axes of it, and dimensions of an embedding: a file that says more is
# damaged.
_LARGEST_DATUM = 2**31
_MOST_AXES = 16
_LARGEST_EMBEDDING = 2**16


def check_y_shape(y_shape: Sequence[int]) -> None:
    """Refuse a shape in a file that no datum has."""
    check_count("number of axes of y_shape", len(y_shape), 1, at_most=_MOST_AXES)
    for size in y_shape:
        check_count("y_shape", size, 1)
    if math.prod(y_shape) > _LARGEST_DATUM:
        raise InputError(f"y_shape: expected at most {_LARGEST_DATUM} numbers, got {y_shape}")


@dataclass
class ModelDocument:
    """What a file says of a single model; its numbers are tensors.

    Args:
        y_shape: shape of one datum.
        embedding_dimension: n.
        encoder: how to make it; None for a network of the user's.
        emulator: likewise.
        similarity: as :meth:`eande.similarities.similarity.Similarity.describe` has it.
        prior: as :meth:`eande.priors.prior.Prior.describe` has it.
        history: one record per validated epoch of training.
        tried: the runs that training chose from; older files have none.
        frozen: names of the parameters that were not trained.
        y_largest: the largest standardised number among the training data; older files lack it.
        parts: of a network of the user's that takes data too large to make up, a digest of its
            text, by its name; older files lack it.
        trained_on: digests of some training simulations; older files lack them.
        guide: that was learned; None for none, as in older files.
    """

    y_shape: list[int]
    embedding_dimension: int
    encoder: NetworkDescription | None
    emulator: NetworkDescription | None
    similarity: dict[str, Any]
    prior: dict[str, Any]
    history: list[dict[str, int | float]]
    frozen: list[str] = field(default_factory=list)
    y_largest: float | None = None
    tried: list[dict[str, int | float | str]] = field(default_factory=list)
    parts: dict[str, str] = field(default_factory=dict)
    trained_on: list[str] = field(default_factory=list)
    guide: GuideSettings | None = None

    def __post_init__(self) -> None:
        """Refuse sizes that no model has."""
        check_count("number of trained_on", len(self.trained_on), 0, at_most=KEPT)
        check_y_shape(self.y_shape)
        check_count("embedding_dimension", self.embedding_dimension, 1, at_most=_LARGEST_EMBEDDING)
        if self.y_largest is not None:
            check_at_least("y_largest", self.y_largest, 0)


@dataclass
class WindowsDocument:
    """What a file says of a model that combines windows, beside the model of one of them.

    Args:
        y_shape: shape of an observation.
        length: of a window.
        count: how many; None for as few as cover an observation.
        axis: of an observation.
        similarity: the mean over windows, or a calibration of it.
    """

    y_shape: list[int]
    length: int
    count: int | None
    axis: int
    similarity: dict[str, Any]

    def __post_init__(self) -> None:
        """Refuse sizes that no observation has."""
        check_y_shape(self.y_shape)


@dataclass
class ModelFile(ModelDocument):
    """The document of a file that holds a single model.

    Args:
        windows: of it that are combined; None where one is all.
        format: of the file.
    """

    windows: WindowsDocument | None = None
    format: int = FORMAT


@dataclass
class EnsembleFile:
    """The document of a file that holds an ensemble.

    Args:
        members: the models.
        similarity: the mean of their ratios, or a calibration of it.
        guide: that was learned for all members together; None for none.
        windows: of it that are combined; None where one is all.
        format: of the file.
    """

    members: list[ModelDocument]
    similarity: dict[str, Any]
    guide: GuideSettings | None = None
    windows: WindowsDocument | None = None
    format: int = FORMAT


def write_model(
    path: str | Path, document: ModelFile | EnsembleFile, tensors: Mapping[str, Tensor]
) -> None:
    """Write what a model consists of."""
    write_tensors(path, "model", as_json(document), tensors)


@torch.no_grad()
def probe(network: nn.Module, shape: Sequence[int], device: torch.device) -> Tensor:
    """Return what a network makes of fixed inputs of that shape.

    A file tells by it a network from others whose weights have the same shapes.
    """
    output: Tensor = network(probe_inputs(shape, device)).float().cpu()
    return output


def probe_inputs(shape: Sequence[int], device: torch.device) -> Tensor:
    """Return the fixed inputs, two of that shape."""
    return torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)).to(device)
