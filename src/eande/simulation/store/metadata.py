"""A store's metadata: three ``zarr.json``, of the group and of its two arrays.

Zarr specifies them. Ours carry, at ``attributes.eande.sha256``, the SHA-256 of the rest of the
document, so that no change goes unnoticed; those of format 1 have none, and their numbers must fit
each other.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eande.foundations.checks import InputError, check_choice, check_count, show, show_shape
from eande.foundations.documents import as_document, as_json
from eande.foundations.files import read_json, write_json
from eande.simulation.run.blocks import block_sizes
from eande.simulation.store.shards import Layout

FORMAT = 2
# Each is a record of its own in one folder, and a number in memory.
_MOST_BLOCKS = 10**7
# No file system has as many bytes.
_MOST_BYTES = 2**60
_REMEDY = "put it back from a copy"


@dataclass(frozen=True)
class Description:
    """What a store is: the attributes of its group.

    Args:
        format: of the store.
        prior: its description.
        simulator: its description.
        seed: the user's.
        block_size: simulations per block.
        extents: number of simulations it was made for, then those it was extended to.
        versions: of what made it.
        design: how parameters are drawn; stores made before there was a choice do not say.
    """

    format: int
    prior: dict[str, Any]
    simulator: dict[str, Any]
    seed: int
    block_size: int
    extents: list[int]
    versions: dict[str, str]
    design: str = "random"

    def __post_init__(self) -> None:
        check_count("seed", self.seed, 0)
        check_choice("design", self.design, ("random", "even"))
        check_count("block_size", self.block_size, 1)
        have = 0
        blocks = 0
        for extent in self.extents:
            check_count("extents", extent, have + 1)
            blocks += -(-(extent - have) // self.block_size)
            have = extent
        if not 1 <= blocks <= _MOST_BLOCKS:
            raise InputError(
                f"blocks: expected 1 to {_MOST_BLOCKS}, "
                f"got {blocks} of {have} simulations, {self.block_size} each"
            )

    @functools.cached_property
    def sizes(self) -> list[int]:
        """The size of every block there is to be."""
        return block_sizes(self.extents, self.block_size)


@dataclass(frozen=True)
class _Named:
    """A part of an array's metadata, with its configuration."""

    name: str
    configuration: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class ArrayDocument:
    """The metadata of an array, as Zarr specifies it; see there."""

    shape: list[int]
    data_type: str
    chunk_grid: _Named
    chunk_key_encoding: _Named
    fill_value: str
    codecs: list[_Named]
    attributes: dict[str, Any]
    zarr_format: int
    node_type: str

    def __post_init__(self) -> None:
        check_count("number of axes", len(self.shape), 2)
        for size in self.shape:
            check_count("shape", size, 1)
        if 4 * math.prod(self.shape) > _MOST_BYTES:
            raise InputError(
                f"shape: expected at most {_MOST_BYTES} bytes, got {show_shape(self.shape)}"
            )

    @classmethod
    def of(
        cls, blocks: int, block_size: int, shape: tuple[int, ...], together: int | None
    ) -> ArrayDocument:
        """Return the metadata of an array of ours.

        Args:
            blocks: their number.
            block_size: rows per block.
            shape: of a row.
            together: rows per piece of a shard; None for an array without shards.
        """
        codecs = [_Named("bytes", {"endian": "little"}), _Named("crc32c")]
        if together is not None:
            inner = [_as_zarr(codec) for codec in codecs]
            shards = {
                "chunk_shape": [together, *shape],
                "codecs": inner,
                "index_codecs": inner,
                "index_location": "end",
            }
            codecs = [_Named("sharding_indexed", shards)]
        return cls(
            shape=[blocks * block_size, *shape],
            data_type="float32",
            chunk_grid=_Named("regular", {"chunk_shape": [block_size, *shape]}),
            chunk_key_encoding=_Named("default", {"separator": "/"}),
            fill_value="NaN",
            codecs=codecs,
            attributes={},
            zarr_format=3,
            node_type="array",
        )

    def write(self, folder: Path) -> None:
        """Write it as the metadata of the array in a folder."""
        content = as_json(self)
        for name in ("chunk_grid", "chunk_key_encoding"):
            content[name] = _as_zarr(getattr(self, name))
        content["codecs"] = [_as_zarr(codec) for codec in self.codecs]
        write_json(folder / "zarr.json", sealed(content), indent=2)


def _as_zarr(part: _Named) -> dict[str, Any]:
    if not part.configuration:
        return {"name": part.name}
    return {"name": part.name, "configuration": part.configuration}


def read_description(path: Path) -> Description:
    """Read what a store says about itself."""
    file = path / "zarr.json"
    content = read_json(file, "the metadata of an eande store")
    attributes = content.get("attributes")
    about = attributes.get("eande") if isinstance(attributes, dict) else None
    form = about.get("format") if isinstance(about, dict) else None
    if not isinstance(about, dict) or type(form) is not int or form < 1:
        raise InputError(
            f"{path}: expected an eande store, got a zarr.json without what a store needs"
        )
    if form > FORMAT:
        raise InputError(
            f"{path}: expected a store of format {FORMAT} or older, got format {form}: "
            "it was written by a newer version of eande"
        )
    _check_seal(file, content, needed=form > 1)
    if content.get("zarr_format") != 3 or content.get("node_type") != "group":
        raise InputError(f"{file}: expected a Zarr group of version 3, got another kind; {_REMEDY}")
    return as_document(file, about, Description)


def write_description(path: Path, description: Description) -> None:
    """Write it into a store's zarr.json, whose other content is the same for every store."""
    content = {
        "attributes": {"eande": as_json(description)},
        "zarr_format": 3,
        "node_type": "group",
    }
    write_json(path / "zarr.json", sealed(content), indent=2)


def read_layout(path: Path, description: Description) -> Layout:
    """Read from the arrays' metadata where things are in a store, which must be as it says."""
    phi = _read_array(path / "phi", description, sharded=False)
    dimension = math.prod(phi.shape[1:])
    if not os.path.lexists(path / "y" / "zarr.json"):
        return Layout(path, description.block_size, dimension)
    y = _read_array(path / "y", description, sharded=True)
    together = y.codecs[0].configuration["chunk_shape"][0]
    return Layout(path, description.block_size, dimension, tuple(y.shape[1:]), together)


def _read_array(folder: Path, description: Description, *, sharded: bool) -> ArrayDocument:
    """Read the metadata of an array, which must be what we would write for its numbers."""
    file = folder / "zarr.json"
    content = read_json(file, "the metadata of a store's array")
    _check_seal(file, content, needed=description.format > 1)
    found = as_document(file, content, ArrayDocument)
    size = description.block_size
    together = None
    if sharded:
        chunk = found.codecs[0].configuration.get("chunk_shape") if found.codecs else None
        together = chunk[0] if isinstance(chunk, list) and chunk else None
        if type(together) is not int or together < 1 or size % together:
            raise InputError(
                f"{file}: expected pieces that divide a block of {size}, got {show(together)}; "
                f"{_REMEDY}"
            )
    expected = ArrayDocument.of(found.shape[0] // size, size, tuple(found.shape[1:]), together)
    for field in dataclasses.fields(expected):
        wanted = getattr(expected, field.name)
        got = getattr(found, field.name)
        if field.name != "attributes" and wanted != got:
            raise InputError(
                f"{file}: {field.name}: expected {show(wanted)}, got {show(got)}; {_REMEDY}"
            )
    if not sharded and len(found.shape) != 2:
        raise InputError(f"{file}: shape: expected (n, D), got {show_shape(found.shape)}")
    # An extension that was interrupted leaves more rows than there are blocks.
    rows = len(description.sizes) * size
    if found.shape[0] < rows:
        raise InputError(
            f"{file}: shape: expected at least {rows} rows, what the store is made for, "
            f"got {found.shape[0]}; {_REMEDY}"
        )
    return found


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """Return a document with its checksum."""
    attributes = content["attributes"]
    about = {**attributes.get("eande", {}), "sha256": _digest(content)}
    return {**content, "attributes": {**attributes, "eande": about}}


def _check_seal(file: Path, content: dict[str, Any], *, needed: bool) -> None:
    attributes = content.get("attributes")
    about = attributes.get("eande") if isinstance(attributes, dict) else None
    found = about.get("sha256") if isinstance(about, dict) else None
    if found is None and not needed:
        return
    if found != _digest(content):
        raise InputError(
            f"{file}: expected the checksum stored with it, got another: "
            f"it was changed after it was written; {_REMEDY}"
        )


def _digest(content: dict[str, Any]) -> str:
    """Return the SHA-256 of a document without its checksum, however it is laid out."""
    attributes = content.get("attributes")
    if isinstance(attributes, dict):
        about = attributes.get("eande")
        rest = {name: value for name, value in attributes.items() if name != "eande"}
        if isinstance(about, dict):
            others = {name: value for name, value in about.items() if name != "sha256"}
            # An array of ours says nothing but the checksum.
            if others:
                rest["eande"] = others
        elif about is not None:
            rest["eande"] = about
        content = {**content, "attributes": rest}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
