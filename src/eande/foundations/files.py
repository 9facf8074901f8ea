"""Files: written in one step, checked when read, never executed.

:func:`replacing` is how the whole project writes a file: a crash leaves the old or the new one
whole. On it stand JSON documents and files of tensors. The latter are safetensors files whose
header carries a JSON document and a SHA-256 over it and every tensor, so that a truncated, edited
or foreign file is refused with one line.

torch is loaded by what needs it: processes that only simulate start in a fraction of the time
without it.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from eande.foundations.checks import InputError

if TYPE_CHECKING:
    from torch import Tensor


@contextmanager
def replacing(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a binary file that takes the place of ``path``, in one step, when the block ends.

    Until then it has a name of its own, ``<name>.<process id>.<random>.tmp`` in the same folder. If
    the block raises an exception it is removed, and what was at ``path`` stays. The folder is made
    if there is none.

    Args:
        path: the file to write.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with replacing(Path(folder) / "new" / "file") as file:
        ...         _ = file.write(b"content")
        ...     (Path(folder) / "new" / "file").read_bytes()
        b'content'
    """
    path = _as_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def sync(files: Iterable[Path]) -> None:
    """Make sure that the content of files, and the names in folders, are on the disk."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_json(path: str | Path, document: Any, *, indent: int | None = 1) -> None:
    """Write a JSON document in one step, with a newline at its end.

    Args:
        path: the file.
        document: what JSON can hold.
        indent: spaces per level; None for a single line.
    """
    text = json.dumps(document, indent=indent)
    with replacing(path) as file:
        file.write(f"{text}\n".encode())


def write_tensors(
    path: str | Path, kind: str, document: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write tensors and a JSON document as a file of that kind."""
    from safetensors.torch import save

    path = _as_path(path)
    if path.is_dir():
        raise InputError(f"{path}: expected the name of a file, got a folder")
    on_cpu = {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }
    text = json.dumps(document)
    header = {"eande": kind, "document": text, "sha256": _digest(kind, text, on_cpu)}
    with replacing(path) as file:
        # Not by save_file: it has temporary files of its own, which a kill leaves behind under
        # names nobody knows.
        file.write(save(on_cpu, metadata=header))


def read_tensors(path: str | Path, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read a file of that kind, or say in one line why it cannot be."""
    from safetensors import SafetensorError, safe_open

    path = _as_path(path)
    if not path.is_file():
        got = "a folder" if path.is_dir() else "nothing there"
        raise InputError(f"{path}: expected a file, got {got}")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            names = file.keys()  # safe_open is no mapping: it cannot be iterated over
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(
            f"{path}: expected an eande {kind}, "
            f"got a file that is damaged or of another format ({error})"
        ) from None
    if header.get("eande") != kind:
        got = header.get("eande", "a safetensors file of other origin")
        raise InputError(f"{path}: expected an eande {kind}, got {got}")
    if header.get("sha256") != _digest(kind, header.get("document", ""), tensors):
        raise InputError(
            f"{path}: expected the checksum stored with it, got another: "
            "the file was changed after it was written"
        )
    document: dict[str, Any] = json.loads(header["document"])
    return document, tensors


def _as_path(path: str | Path) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"path: expected the name of a file, got {path!r}")
    return Path(path)


def _digest(kind: str, text: str, tensors: Mapping[str, Tensor]) -> str:
    import torch

    digest = hashlib.sha256(f"{kind}\n{text}\n".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
