"""Tensors and JSON in one safetensors file: written atomically, checked when read, never executed.

The header carries a JSON document and a SHA-256 over it and every tensor, so that a truncated, edited or foreign file
is refused with one line. The file replaces an older one in a single step: a crash leaves the old or the new one whole.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from eande.foundations.checks import InputError


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file for writing that replaces ``path`` in one step when the block ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON document in one step: a reader sees the old one or the new one."""
    with replacing(path) as file:
        file.write((json.dumps(document, indent=1) + "\n").encode())


def write_tensors(
    path: str | Path, kind: str, document: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write tensors and a JSON document as a file of that kind."""
    path = _as_path(path)
    if path.is_dir():
        raise InputError(f"{path}: expected the name of a file, got a folder")
    stored = {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }
    text = json.dumps(document)
    header = {"eande": kind, "document": text, "sha256": _digest(kind, text, stored)}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            # Not by save_file: it has temporary files of its own, which a kill leaves behind under names nobody knows.
            file.write(save(stored, metadata=header))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_tensors(path: str | Path, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read a file of that kind, or say in one line why it cannot be."""
    path = _as_path(path)
    if not path.is_file():
        raise InputError(
            f"{path}: expected a file, got {'a folder' if path.is_dir() else 'nothing there'}"
        )
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (safe_open is no mapping)
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(
            f"{path}: expected an eande {kind}, got a file that is damaged or of another format ({error})"
        ) from None
    if header.get("eande") != kind:
        raise InputError(
            f"{path}: expected an eande {kind}, got {header.get('eande', 'a safetensors file of other origin')}"
        )
    if header.get("sha256") != _digest(kind, header.get("document", ""), tensors):
        raise InputError(
            f"{path}: expected the checksum stored with it, got another: the file was changed after it was written"
        )
    document: dict[str, Any] = json.loads(header["document"])
    return document, tensors


def _as_path(path: str | Path) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"path: expected the name of a file, got {path!r}")
    return Path(path)


def _digest(kind: str, text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(f"{kind}\n{text}\n".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
