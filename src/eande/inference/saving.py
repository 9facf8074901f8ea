"""Saving a model: one file of tensors and JSON. :mod:`eande.inference.loading` reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eande.foundations.files import write_tensors
from eande.networks.choose import describe_network
from eande.priors.draws import EmpiricalPrior
from eande.similarities.similarities import describe_similarity

if TYPE_CHECKING:
    from pathlib import Path

    from eande.inference.model import EmbedAndEmulate

FORMAT = 4


def save(model: EmbedAndEmulate, path: str | Path) -> None:
    """Write a model, or an ensemble with all its members, to one file."""
    if not model.members:
        write_tensors(path, "model", *_contents(model))
        return
    contents = [_contents(member) for member in model.members]
    tensors = {
        f"member.{i}.{name}": tensor
        for i, (_, own) in enumerate(contents)
        for name, tensor in own.items()
    }
    tensors |= {
        f"similarity.{name}": tensor for name, tensor in model.similarity.state_dict().items()
    }
    write_tensors(
        path,
        "model",
        {"format": FORMAT, "members": [document for document, _ in contents]},
        tensors,
    )


def _contents(model: EmbedAndEmulate) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return what a file holds of one model."""
    document = {
        "format": FORMAT,
        "y_shape": model.y_shape,
        "embedding_dimension": model.embedding_dimension,
        "encoder": describe_network(model.encoder),
        "emulator": describe_network(model.emulator),
        "similarity": describe_similarity(model.similarity),
        "prior": model.prior.describe(),
        "history": model.history,
        "frozen": model.frozen,
    }
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    if isinstance(model.prior, EmpiricalPrior):
        tensors["prior.draws"] = model.prior.draws
    return document, tensors | probe(model)


def probe(model: EmbedAndEmulate) -> dict[str, Tensor]:
    """Return what the networks make of fixed inputs, by which a file tells them from others with weights of the same shapes."""
    outputs = {}
    for name, network, shape in (
        ("encoder", model.encoder, model.y_shape),
        ("emulator", model.emulator, (model.prior.dimension,)),
    ):
        inputs = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)).to(model.device)
        with torch.no_grad():
            outputs[f"probe.{name}"] = network(inputs).float().cpu()
    return outputs
