"""The manifest of a converted dataset, ``dataset.json``: what is there, from what it was made, and how.

It is written last, so its presence means that the dataset is complete.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from stream.format.names import FORMAT_VERSION, MANIFEST_NAME, TABLE_KINDS, TableKind, split_of
from stream.storage.errors import FormatError, first_fault
from stream.storage.small_file import FileTooLarge, read_whole

_NAME = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$", max_length=200)]
_COUNT = Annotated[int, Field(ge=0, lt=1 << 48)]
"""Beyond any dataset; so that sums of counts stay within 64 bits."""
_MAX_BYTES = 1 << 30
"""Of a manifest; one of 20,000 shards has 30 MB."""
UNSIGNED = "0" * 64
_SHA256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileEntry(_Model):
    """One file: size in bytes and SHA-256 in hex."""

    bytes: _COUNT
    sha256: _SHA256


class TableEntry(FileEntry):
    """One table of an index: size, SHA-256 and, by column, the XXH3 of its bytes (64 bits, 16 hex digits).

    A column's XXH3 lets a loader check the columns that it uses, see ``stream.format.table.hash_column``.
    """

    columns: dict[str, Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]]


class ShardEntry(_Model):
    """One shard: its stem, counts, its ArrayRecord file, and the source file that it was made of.

    source_digest: SHA-256 over the lengths and checksums that the source file stores. paired_episodes: how many of the
    episodes have records. left_out: counts by reason. sizes: stored frames by "HxW", counted once however many records
    have them. passed: those of them that are the source's own bytes.
    """

    name: _NAME
    source_file: _NAME
    source_bytes: _COUNT
    source_digest: str = Field(max_length=200)
    episodes: _COUNT
    steps: _COUNT
    records: _COUNT
    paired_episodes: _COUNT
    left_out: dict[str, _COUNT]
    sizes: dict[str, _COUNT] = Field(default_factory=dict)
    passed: _COUNT = 0
    file: FileEntry


class SplitEntry(_Model):
    """One split: totals, its shards in the order of the source, and the tables of its index."""

    episodes: _COUNT
    steps: _COUNT
    records: _COUNT
    shards: tuple[ShardEntry, ...]
    index: dict[TableKind, TableEntry]

    @field_validator("index")
    @classmethod
    def _all_kinds(cls, index: dict[TableKind, TableEntry]) -> dict[TableKind, TableEntry]:
        if set(index) != set(TABLE_KINDS):
            raise ValueError(f"has the tables {', '.join(sorted(index)) or 'none'}, expected {', '.join(TABLE_KINDS)}")
        return index


class Statistics(_Model):
    """Statistics of one vector over all steps of a split, one number a dimension.

    count: steps that were counted. nonfinite: values left out per dimension because they were NaN or infinite. std: the
    population's (ddof 0). q01, q99: exact quantiles, interpolated linearly.
    """

    names: tuple[str, ...]
    count: _COUNT
    nonfinite: tuple[_COUNT, ...]
    mean: tuple[float | None, ...]
    std: tuple[float | None, ...]
    min: tuple[float | None, ...]
    max: tuple[float | None, ...]
    q01: tuple[float | None, ...]
    q99: tuple[float | None, ...]


class Source(_Model):
    """Where the data came from. fingerprint: SHA-256 over its dataset_info.json and features.json."""

    tfds_name: _NAME
    version: _NAME
    path: str
    fingerprint: _SHA256


class Manifest(_Model):
    """The whole of ``dataset.json``.

    parameters: every parameter of the conversion that changes the output. spec: the registry entry that was used (which
    columns are action and state, the control frequency, quirks). image: encoding, sizes, and how many frames passed
    through. left_out: counts by reason. quarantine: the list of what was left out, None if nothing was. statistics: by
    split, of ``action`` and ``state``. versions: of code and libraries. checksum: see ``encode_manifest``.
    """

    format_version: Literal[2]
    layout: Literal["pairs"]
    dataset: _NAME
    version: _NAME
    source: Source
    parameters: dict[str, Any]
    spec: dict[str, Any]
    image: dict[str, Any]
    episodes: _COUNT
    steps: _COUNT
    records: _COUNT
    left_out: dict[str, _COUNT]
    quarantine: FileEntry | None
    splits: dict[_NAME, SplitEntry]
    statistics: dict[_NAME, dict[Literal["action", "state"], Statistics]]
    versions: dict[str, str]
    checksum: _SHA256 = UNSIGNED


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the content of ``dataset.json``.

    Its ``checksum`` is the SHA-256 of the file as it would be with 64 zeros in that place, so a changed byte shows.
    """
    unsigned = manifest.model_copy(update={"checksum": UNSIGNED}).model_dump(mode="json")
    content = (json.dumps(unsigned, indent=1, ensure_ascii=False) + "\n").encode()
    before, zeros, after = content.rpartition(UNSIGNED.encode())
    return before + hashlib.sha256(before + zeros + after).hexdigest().encode() + after


def read_manifest(path: str | Path) -> Manifest:
    """Read and validate a manifest.

    Args:
        path: the ``dataset.json`` itself or its folder.

    Raises:
        FormatError: not JSON, another format version, or fields that do not fit; names the file and the field.
        FileNotFoundError: there is none, so the conversion is not complete.
    """
    path = Path(path)
    if path.is_dir():
        path = path / MANIFEST_NAME
    try:
        content = read_whole(path, _MAX_BYTES)
    except FileTooLarge as error:
        raise FormatError(f"{path}: {error}, so not a manifest; convert this dataset again") from None
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path}: no manifest, so this conversion is not complete; run convert.run again to finish it"
        ) from None
    return parse_manifest(content, where=str(path))


def parse_manifest(content: bytes, *, where: str) -> Manifest:
    """Validate the content of a manifest; raises FormatError as ``read_manifest`` does, naming ``where``."""
    try:
        manifest = Manifest.model_validate_json(content)
    except ValidationError as error:
        raise FormatError(f"{where}: {_fault(content, error)}") from None
    before, _, after = content.rpartition(manifest.checksum.encode())
    if hashlib.sha256(before + UNSIGNED.encode() + after).hexdigest() != manifest.checksum:
        raise FormatError(
            f"{where}: its checksum is wrong, so it was changed or damaged; convert again with --overwrite"
        )
    for fault in _inconsistencies(manifest):
        raise FormatError(f"{where}: {fault}")
    return manifest


def _fault(content: bytes, error: ValidationError) -> str:
    """What is wrong with a manifest, the most telling first."""
    try:
        raw = json.loads(content)
    except (ValueError, RecursionError) as broken:
        return f"not a JSON file ({broken}); convert this dataset again"
    found = raw.get("format_version") if isinstance(raw, dict) else None
    if found != FORMAT_VERSION:
        return (
            f"format version {found!r}, this program reads version {FORMAT_VERSION}; convert it again with "
            "`python -m convert.run ... --overwrite`"
        )
    return f"field {first_fault(error)}"


def _inconsistencies(manifest: Manifest) -> Iterator[str]:
    """Yield what does not fit together."""
    for name, split in manifest.splits.items():
        yield from _wrong_totals(f"split {name}", split, split.shards)
        for stem, count in Counter(shard.name for shard in split.shards).items():
            if count > 1:
                yield f"split {name} lists shard {stem} twice"
            if split_of(stem) != name:
                yield f"shard {stem} is listed under split {name}, where it does not belong"
    yield from _wrong_totals("the dataset", manifest, list(manifest.splits.values()))
    for name, vectors in manifest.statistics.items():
        for vector, statistics in vectors.items():
            lengths = {key: len(value) for key, value in statistics if key != "count"}
            if len(set(lengths.values())) > 1:
                yield f"statistics of {vector} in split {name} differ in length: {lengths}"


def _wrong_totals(what: str, whole: Manifest | SplitEntry, parts: Sequence[SplitEntry | ShardEntry]) -> Iterator[str]:
    for key in ("episodes", "steps", "records"):
        total = sum(getattr(part, key) for part in parts)
        if total != getattr(whole, key):
            yield f"{what} says {getattr(whole, key)} {key}, its parts add up to {total}"
