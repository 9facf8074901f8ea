"""Files: written in one step, checked when read, never executed.

:func:`replacing` is how the whole project writes a file: a crash leaves the old or the new one
whole. :func:`open_regular` is how it opens one: whoever put a pipe, a device or a folder in its
place is told so at once. On them stand JSON documents and files of tensors. The latter are
safetensors files whose header carries a JSON document and a SHA-256 over it and every tensor, so
that a truncated, edited or foreign file is refused with one line.

torch is loaded by what needs it: processes that only simulate start in a fraction of the time
without it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from eande.foundations.checks import InputError, show
from eande.foundations.paths import as_path, what_is

if TYPE_CHECKING:
    from torch import Tensor

# A JSON document of ours has fewer bytes: the largest results have a few megabytes.
_LARGEST_DOCUMENT = 2**26
# Of a tensor's numbers: how many torch can count, and bytes of the widest.
_MOST_NUMBERS = 2**60
_WIDEST_NUMBER = 16
# A file of more bytes has no numbers that a file system could store in so much less space.
_LARGE = 2**24
_FULLER = 20
# Bytes of zeros that are written at a time.
_AT_ONCE = 2**20
# The names of temporary files.
_TEMPORARY = re.compile(r"(?P<name>.+)\.\d+\.[0-9a-f]{8}\.tmp", re.DOTALL)
# What a reader is told of each tensor before any is read.
Shapes = Mapping[str, tuple[int, ...]]


class StorageError(OSError):
    """A disk or a file system refused to keep something; the message says what and why."""


@contextmanager
def storing(what: object) -> Iterator[None]:
    """Say in one line what could not be written, and why.

    Args:
        what: the file or folder.
    """
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        reason = error.strerror or error
        problem = StorageError(
            f"{what}: could not be written ({reason}); what was there before stays"
        )
        problem.errno = error.errno
        raise problem from None


@contextmanager
def replacing(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a binary file that takes the place of ``path``, in one step, when the block ends.

    Until then it has a name of its own, ``<name>.<process id>.<random>.tmp`` in the same folder. If
    the block raises an exception it is removed, and what was at ``path`` stays. The folder is made
    if there is none. A symbolic link at ``path`` is replaced, not followed.

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
    path = as_path("path", path)
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary, file = _open_temporary(path)
    try:
        # Not inside `storing`: what the block raises is its own.
        yield file
        with storing(path):
            file.flush()
            os.fsync(file.fileno())
            # Before the lock on it goes: nobody may take it for the debris of a dead process.
            temporary.replace(path)
            sync([path.parent])
    finally:
        # A disk that took no more takes no more now, and what is left to write is thrown away.
        with suppress(OSError):
            file.close()
        temporary.unlink(missing_ok=True)


def _open_temporary(path: Path) -> tuple[Path, IO[bytes]]:
    """Make a new file beside ``path``, locked as long as it is open."""
    while True:
        temporary = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
        # "x" neither follows a symbolic link nor takes a file that is there.
        file = temporary.open("xb")
        try:
            _lock(file)
            # Between opening and locking, another process may have taken it for debris.
            if os.fstat(file.fileno()).st_nlink:
                return temporary, file
        except BaseException:
            file.close()
            temporary.unlink(missing_ok=True)
            raise
        file.close()


def _lock(file: IO[bytes]) -> None:
    """Lock a file; on a file system without locks nobody takes it for debris either."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
            raise


def clear_strays(path: Path) -> None:
    """Remove the temporary files that dead processes left of ``path``; those of the living stay."""
    clear_folder(path.parent, path.name)


def clear_folder(folder: Path, name: str | None = None) -> None:
    """Remove the temporary files that dead processes left in a folder; those of the living stay.

    Args:
        folder: where; its own folders are not looked into.
        name: of the file they would have become; None for any.
    """
    try:
        found = os.listdir(folder)
    except OSError:
        return  # nothing there, or nothing that we may see
    for stray in found:
        of = _TEMPORARY.fullmatch(stray)
        if of is None or name not in (None, of["name"]):
            continue
        try:
            with open_regular(folder / stray) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                (folder / stray).unlink()
        except (InputError, OSError):
            continue  # held by a living process, gone, or not ours to remove


def check_writable(path: Path, room: int = 0) -> None:
    """Refuse, before long work, a file that could not be written at its end.

    Args:
        path: the file; a small one is written beside it and removed.
        room: bytes that the disk must have for it, about.
    """
    with storing(path):
        if path.is_dir():
            raise StorageError(f"{path}: expected the name of a file, got a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        clear_strays(path)
        temporary, file = _open_temporary(path)
        try:
            with file:
                file.write(bytes(4096))
                file.flush()
                _reserve(file, room)
                os.fsync(file.fileno())
        finally:
            temporary.unlink(missing_ok=True)


def _reserve(file: IO[bytes], room: int) -> None:
    """Make a file that many bytes long, all of which the disk holds."""
    if not room:
        return
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, room)
        return
    # Not on macOS, where writing them is the way.
    for begin in range(0, room, _AT_ONCE):
        file.write(bytes(min(_AT_ONCE, room - begin)))
    file.flush()


def sync(files: Iterable[Path]) -> None:
    """Make sure that the content of files, and the names in folders, are on the disk."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def open_regular(path: str | Path, *, at_most: int | None = None) -> FileIO:
    """Open a file for reading, unbuffered; refuse at once what is not a regular one.

    Args:
        path: the file; symbolic links are followed.
        at_most: bytes it may have.
    """
    return FileIO(_open_descriptor(path, at_most)[0])


def _open_descriptor(path: str | Path, at_most: int | None) -> tuple[int, os.stat_result]:
    try:
        # Without O_NONBLOCK, opening a pipe waits for somebody who writes to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise InputError(f"{path}: expected a file, got nothing there") from None
    except OSError as error:
        raise InputError(
            f"{path}: expected a file that can be read, got {error.strerror}"
        ) from None
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise InputError(f"{path}: expected a file, got {what_is(state)}")
        if at_most is not None and state.st_size > at_most:
            raise InputError(
                f"{path}: expected a file of at most {at_most} bytes, got {state.st_size}"
            )
        return descriptor, state
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str | Path, *, at_most: int = _LARGEST_DOCUMENT) -> bytes:
    """Return the content of a regular file of at most that many bytes."""
    return read_state(path, at_most=at_most)[0]


def read_state(path: str | Path, *, at_most: int) -> tuple[bytes, os.stat_result]:
    """Return the content of a regular file, and what the system says of it."""
    descriptor, state = _open_descriptor(path, at_most)
    with FileIO(descriptor) as file:
        return read_exactly(path, file, state.st_size), state


def read_exactly(path: str | Path, file: IO[bytes], size: int) -> bytes:
    """Read that many bytes, or say that the file ended, or the disk failed, before."""
    parts = []
    try:
        while size > 0 and (part := file.read(size)):
            parts.append(part)
            size -= len(part)
    except OSError as error:
        raise InputError(
            f"{path}: expected a file that can be read, got {error.strerror}"
        ) from None
    if size > 0:
        raise InputError(f"{path}: expected {size} bytes more, got the end of the file")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def digest_of(**parts: Any) -> str:
    """Return a digest of values that JSON can hold."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def digest_file(path: Path) -> str:
    """Return a digest of what a file holds."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def write_json(path: str | Path, document: Any, *, indent: int | None = 1) -> None:
    """Write a JSON document in one step, with a newline at its end.

    Args:
        path: the file.
        document: what JSON can hold.
        indent: spaces per level; None for a single line.
    """
    text = json.dumps(document, indent=indent)
    with replacing(path) as file, storing(path):
        file.write(f"{text}\n".encode())


def parse_json(where: object, content: bytes | str, what: str) -> dict[str, Any]:
    """Return the JSON object that a file holds, or say in one line why it holds none.

    Args:
        where: the file.
        content: what was read from it.
        what: it should be, with its article.
    """
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{where}: expected {what}, got something damaged ({type(error).__name__}: {error})"
        ) from None
    if not isinstance(document, dict):
        raise InputError(f"{where}: expected {what}, got a {type(document).__name__}")
    return document


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Return the JSON object in a file of that kind."""
    return parse_json(path, read_regular(path), what)


def write_tensors(
    path: str | Path, kind: str, document: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write tensors and a JSON document as a file of that kind."""
    from safetensors.torch import save

    path = as_path("path", path)
    if path.is_dir():
        raise InputError(f"{path}: expected the name of a file, got a folder")
    on_cpu = {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }
    clear_strays(path)
    text = json.dumps(document)
    header = {"eande": kind, "document": text, "sha256": _digest(kind, text, on_cpu)}
    with replacing(path) as file, storing(path):
        # Not by save_file: it has temporary files of its own, which a kill leaves behind under
        # names nobody knows.
        file.write(save(on_cpu, metadata=header))


def read_tensors(
    path: str | Path,
    kind: str,
    check: Callable[[dict[str, Any], Shapes], None] = lambda document, shapes: None,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read a file of that kind, or say in one line why it cannot be.

    Args:
        path: the file. It is opened once, so that another may take its place meanwhile.
        kind: what it should be.
        check: is given the document and the shapes of the tensors before any of them is read, and
            refuses what does not belong together.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = as_path("path", path)
    with open_regular(path) as file:
        header, start = _read_header(path, file, kind)
        metadata = header.pop("__metadata__", None)
        found = metadata.get("eande") if isinstance(metadata, dict) else None
        if not isinstance(metadata, dict) or found != kind:
            got = found or "a safetensors file of other origin"
            raise InputError(f"{path}: expected an eande {kind}, got {got}")
        text = metadata.get("document")
        if not isinstance(text, str):
            raise _not_ours(path, kind, "it has no document")
        document = parse_json(path, text, f"an eande {kind}")
        room = os.fstat(file.fileno()).st_size - len(start)
        _refuse_holes(path, kind, os.fstat(file.fileno()))
        shapes = _declared_shapes(path, kind, header, room)
        check(document, shapes)
        content = start + read_exactly(path, file, room)
    try:
        tensors = load(content)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise _not_ours(path, kind, error) from None
    if metadata.get("sha256") != _digest(kind, text, tensors):
        raise InputError(
            f"{path}: expected the checksum stored with it, got another: "
            "the file was changed after it was written"
        )
    return document, tensors


def _not_ours(path: Path, kind: str, reason: object) -> InputError:
    return InputError(
        f"{path}: expected an eande {kind}, "
        f"got a file that is damaged or of another format ({reason})"
    )


def _read_header(path: Path, file: IO[bytes], kind: str) -> tuple[dict[str, Any], bytes]:
    """Return the header of a safetensors file, parsed, and all bytes up to its end."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or not 2 <= length <= min(size - 8, _LARGEST_DOCUMENT):
        raise _not_ours(path, kind, "its header is too small or too large")
    text = read_exactly(path, file, length)
    try:
        header = parse_json(path, text, "a header")
    except InputError as error:
        raise _not_ours(path, kind, error) from None
    return header, length.to_bytes(8, "little") + text


def _refuse_holes(path: Path, kind: str, state: os.stat_result) -> None:
    """Refuse a large file of which the disk holds next to nothing: nobody wrote its numbers.

    Some file systems do not say how much they hold.
    """
    held = 512 * state.st_blocks
    if state.st_size > _LARGE and 0 < held < state.st_size / _FULLER:
        raise _not_ours(path, kind, f"{held} bytes on the disk instead of {state.st_size}")


def _declared_shapes(path: Path, kind: str, header: Mapping[str, Any], room: int) -> Shapes:
    """Return the shapes of a header's tensors, which together must fill the rest of the file."""
    shapes: dict[str, tuple[int, ...]] = {}
    filled = 0
    for name, entry in header.items():
        try:
            shape = tuple(entry["shape"])
            first, last = entry["data_offsets"]
            if not all(type(number) is int and number >= 0 for number in (*shape, first, last)):
                raise ValueError
            # Where a size is zero, the others are still multiplied when a tensor is made.
            largest = math.prod(max(1, size) for size in shape)
            if largest >= _MOST_NUMBERS or last - first > _WIDEST_NUMBER * math.prod(shape):
                raise ValueError
        except (LookupError, TypeError, ValueError):
            raise _not_ours(path, kind, f"{show(name)} has no shape and place") from None
        shapes[name] = shape
        filled += last - first
    if filled != room:
        raise _not_ours(path, kind, f"{room} bytes of tensors instead of {filled}")
    return shapes


def _digest(kind: str, text: str, tensors: Mapping[str, Tensor]) -> str:
    import torch

    digest = hashlib.sha256(_encoded(f"{kind}\n{text}\n"))
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(_encoded(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n"))
        try:
            numbers = tensor.numpy()
        except TypeError:
            # A kind that numpy does not know, such as bfloat16.
            numbers = tensor.reshape(-1).view(torch.uint8).numpy()
        digest.update(numbers.data)
    return digest.hexdigest()


def _encoded(text: str) -> bytes:
    """Return a text as bytes; JSON may hold half of a pair of surrogates, which UTF-8 may not."""
    return text.encode(errors="surrogatepass")
