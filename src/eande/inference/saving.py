"""Saving a model: one file of tensors and JSON, which :mod:`eande.inference.loading` reads."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eande.foundations.files import write_tensors

# 5: similarities are described by name and settings, calibration is a similarity around another.
FORMAT = 5


def write_model(
    path: str | Path, document: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write what a model consists of, with the number of the file's format."""
    write_tensors(path, "model", {"format": FORMAT} | dict(document), tensors)


@torch.no_grad()
def probe(network: nn.Module, shape: Sequence[int], device: torch.device) -> Tensor:
    """Return what a network makes of fixed inputs of that shape.

    A file tells by it a network from others whose weights have the same shapes.
    """
    inputs = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)).to(device)
    output: Tensor = network(inputs).float().cpu()
    return output
