"""The manifest of a converted dataset, ``dataset.json``: its content, source and parameters.

The manifest is written last, so its presence means that the dataset is complete.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from stream.base.errors import FormatError, first_fault
from stream.base.reading import check_regular, read_limited
from stream.format.names import (
    FETCHED_NAME,
    FORMAT_VERSION,
    MANIFEST_NAME,
    TABLE_KINDS,
    VECTORS,
    DerivedName,
    Layout,
    TableKind,
    split_of,
)
from stream.storage.files import write_atomically

NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$"
"""Pattern of the names of datasets, splits and labels."""
_NAME = Annotated[str, Field(pattern=NAME, max_length=200)]
_SOURCE = Annotated[str, Field(min_length=1, max_length=8192)]
_COUNT = Annotated[int, Field(ge=0, lt=1 << 48)]
"""The limit is beyond any dataset, and keeps sums of counts within 64 bits."""
_MAX_BYTES = 1 << 30
"""Size limit of a manifest; 20,000 shards take 30 MB."""
PARTIAL = ".fetch"
"""End of the names of incomplete files."""
UNSIGNED = "0" * 64
"""Checksum of a manifest that is not encoded yet."""
_SHA256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_NUMBERS = tuple[float | None, ...]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileEntry(_Model):
    """Size in bytes and SHA-256 (in hex) of one file."""

    bytes: _COUNT
    sha256: _SHA256


class TableEntry(FileEntry):
    """One table of an index. ``columns`` has the XXH3 of each column (64 bits in hex), see ``hash_column``."""

    columns: dict[str, Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]]


class ShardEntry(_Model):
    """One shard.

    Attributes:
        name: File name without its ending.
        source_file: Source file of the shard, or the first one and the count of the others. The file of each episode
            is in ``episodes``.
        source_bytes: Size of the source files.
        source_digest: SHA-256 over the lengths and checksums that the source file stores.
        paired_episodes: Count of the episodes with records.
        left_out: Count of the episodes left out, by reason.
        sizes: Count of the stored frames, by "HxW"; a frame in several records counts once.
        camera_sizes: The same by camera, in the ``frames`` layout.
        passed: Count of the stored frames that are bytes of the source, not encoded again.
        file: ArrayRecord file.
    """

    name: _NAME
    source_file: _SOURCE
    source_bytes: _COUNT
    source_digest: str = Field(max_length=200)
    episodes: _COUNT
    steps: _COUNT
    records: _COUNT
    paired_episodes: _COUNT
    left_out: dict[str, _COUNT]
    sizes: dict[str, _COUNT] = Field(default_factory=dict)
    camera_sizes: dict[str, dict[str, _COUNT]] = Field(default_factory=dict)
    passed: _COUNT = 0
    file: FileEntry


class SplitEntry(_Model):
    """One split: its totals, its shards in the order of the source, the tables of its index, and those of its labels.

    A table of labels has a row for each step, and columns that were added after the conversion. ``instruction`` is the
    only instruction of the split, empty where no step has one; None where there are several.
    """

    episodes: _COUNT
    steps: _COUNT
    records: _COUNT
    shards: tuple[ShardEntry, ...]
    index: dict[TableKind, TableEntry]
    labels: dict[_NAME, TableEntry] = Field(default_factory=dict)
    instruction: str | None = None

    def columns(self, kind: TableKind) -> dict[str, str]:
        """Return the XXH3 of each column of a table, with labels among those of ``steps``."""
        labels = self.labels.values() if kind == "steps" else ()
        return {name: xxh3 for table in (self.index[kind], *labels) for name, xxh3 in table.columns.items()}

    @field_validator("index")
    @classmethod
    def _all_kinds(cls, index: dict[TableKind, TableEntry]) -> dict[TableKind, TableEntry]:
        if set(index) != set(TABLE_KINDS):
            raise ValueError(f"has the tables {', '.join(sorted(index)) or 'none'}, expected {', '.join(TABLE_KINDS)}")
        return index


class Statistics(_Model):
    """Statistics of one vector over all steps of a split, one number per dimension.

    Attributes:
        count: Count of the steps.
        nonfinite: Count of the values left out because they were NaN or infinite.
        nonfinite_episodes: Count of the episodes with such values, of action and state.
        std: Standard deviation of the population (ddof 0).
        q01, q99: Exact quantiles, interpolated linearly.
    """

    names: tuple[str, ...]
    count: _COUNT
    nonfinite: tuple[_COUNT, ...]
    nonfinite_episodes: _COUNT = 0
    mean: _NUMBERS
    std: _NUMBERS
    min: _NUMBERS
    max: _NUMBERS
    q01: _NUMBERS
    q99: _NUMBERS


class Source(_Model):
    """Source of a dataset. ``fingerprint`` is the SHA-256 over its dataset_info.json and features.json."""

    tfds_name: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_][A-Za-z0-9_.+-]*)?$", max_length=200)
    ]
    version: _NAME
    path: str
    fingerprint: _SHA256


class Manifest(_Model):
    """Content of ``dataset.json``.

    Attributes:
        parameters: Every parameter of the conversion that changes its output.
        spec: Registry entry of the dataset: columns of action and state, control frequency, quirks.
        image: Encoding and sizes of frames, and the count of frames that passed through.
        left_out: Count of the episodes left out, by reason.
        quarantine: File that lists the episodes left out, None if there are none.
        statistics: Statistics of the derived columns, by split.
        versions: Versions of the code and its libraries.
        unlabelled: Checksum that the manifest would have without its labels, zeros if it has none.
        checksum: See ``encode_manifest``.
    """

    format_version: Literal[2]
    layout: Layout
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
    statistics: dict[_NAME, dict[DerivedName, Statistics]]
    versions: dict[str, str]
    unlabelled: _SHA256 = UNSIGNED
    checksum: _SHA256 = UNSIGNED

    @property
    def data(self) -> str:
        """Checksum of what was converted, which labels do not change."""
        return self.checksum if self.unlabelled == UNSIGNED else self.unlabelled

    @property
    def nonfinite_episodes(self) -> dict[str, int]:
        """Count of the episodes with NaN or infinity in action or state, without those that have none."""
        counts: Counter[str] = Counter()
        for vectors in self.statistics.values():
            counts.update({name: vectors[name].nonfinite_episodes for name in VECTORS if name in vectors})
        return {name: counts[name] for name in VECTORS if counts[name]}

    @property
    def instruction(self) -> str | None:
        """The only instruction of several episodes, empty where none has one; None where there are several."""
        instructions = {split_entry.instruction for split_entry in self.splits.values() if split_entry.steps}
        return instructions.pop() if len(instructions) == 1 and self.episodes > 1 else None

    def with_labels(self, labels_by_split: Mapping[str, Mapping[str, TableEntry]]) -> Manifest:
        """Return the manifest with other labels, by split and name; splits that are not named lose theirs."""
        splits = {
            split_name: entry.model_copy(update={"labels": dict(sorted(labels_by_split.get(split_name, {}).items()))})
            for split_name, entry in self.splits.items()
        }
        return self.model_copy(update={"splits": splits})


def describe_file(file_path: Path) -> FileEntry:
    """Return size and hash of a file; raise OSError if it cannot be read or is not a file."""
    check_regular(file_path)
    with file_path.open("rb") as opened_file:
        file_hash = hashlib.file_digest(opened_file, "sha256")
        return FileEntry(bytes=opened_file.tell(), sha256=file_hash.hexdigest())


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the content of ``dataset.json``.

    The ``checksum`` in it is the SHA-256 of the same content with 64 zeros as checksum, so any changed byte shows.
    Keys of labels, of a single instruction and of nonfinite values are omitted where there are none.
    """
    unsigned = manifest.model_copy(update={"checksum": UNSIGNED}).model_dump(mode="json")
    split_contents = unsigned["splits"].values()
    unlabelled = [content for content in split_contents if not content["labels"]]
    for content in unlabelled:
        del content["labels"]
    for content in split_contents:
        if content["instruction"] is None:
            del content["instruction"]
    for statistics in itertools.chain(*(vectors.values() for vectors in unsigned["statistics"].values())):
        if not statistics["nonfinite_episodes"]:
            del statistics["nonfinite_episodes"]
    if len(unlabelled) == len(split_contents):
        del unsigned["unlabelled"]
    else:
        # The checksum is the last text in it.
        unsigned["unlabelled"] = encode_manifest(manifest.with_labels({})).rsplit(b'"', 2)[1].decode()
    encoded = (json.dumps(unsigned, indent=1, ensure_ascii=False) + "\n").encode()
    prefix, placeholder, suffix = encoded.rpartition(UNSIGNED.encode())
    return prefix + hashlib.sha256(prefix + placeholder + suffix).hexdigest().encode() + suffix


def read_manifest(manifest_path: str | Path) -> Manifest:
    """Read and validate a manifest, ``dataset.json`` or the one of a folder.

    Raises:
        FormatError: The file is not JSON, has another format version, or a wrong field; the message names the field.
        FileNotFoundError: The file does not exist, so the conversion is not complete.
    """
    manifest_path = Path(manifest_path)
    if manifest_path.is_dir():
        manifest_path = manifest_path / MANIFEST_NAME
    try:
        content = read_limited(manifest_path, _MAX_BYTES)
    except FormatError as error:
        raise FormatError(f"{manifest_path}: {error}, so not a manifest; convert this dataset again") from None
    except FileNotFoundError:
        problem = "no manifest, so this conversion is not complete; run convert.run again to finish it"
        raise FileNotFoundError(f"{manifest_path}: {problem}") from None
    return parse_manifest(content, context=str(manifest_path))


def parse_manifest(content: bytes, *, context: str) -> Manifest:
    """Validate the content of a manifest; raise FormatError as ``read_manifest`` does, with ``context`` as the file."""
    collects = gc.isenabled()
    # The objects of 20,000 shards make the garbage collector run, in vain, for a third of the time.
    gc.disable()
    try:
        manifest = Manifest.model_validate_json(content)
    except ValidationError as error:
        raise FormatError(f"{context}: {_fault(content, error)}") from None
    finally:
        if collects:
            gc.enable()
    prefix, _, suffix = content.rpartition(manifest.checksum.encode())
    if hashlib.sha256(prefix + UNSIGNED.encode() + suffix).hexdigest() != manifest.checksum:
        problem = "its checksum is wrong, so it was changed or damaged"
        raise FormatError(f"{context}: {problem}; convert again with --overwrite")
    for inconsistency in _inconsistencies(manifest):
        raise FormatError(f"{context}: {inconsistency}")
    return manifest


def _fault(content: bytes, error: ValidationError) -> str:
    """Return the most informative fault: not JSON, another format version, or a wrong field."""
    try:
        manifest = json.loads(content)
    except (ValueError, RecursionError) as broken:
        return f"not a JSON file ({broken}); convert this dataset again"
    format_version = manifest.get("format_version") if isinstance(manifest, dict) else None
    if format_version != FORMAT_VERSION:
        versions = f"format version {format_version!r}, this program reads version {FORMAT_VERSION}"
        return f"{versions}; convert it again with `python -m convert.run ... --overwrite`"
    return f"field {first_fault(error)}"


def _inconsistencies(manifest: Manifest) -> Iterator[str]:
    """Yield the contradictions between fields."""
    for split_name, split_entry in manifest.splits.items():
        tables = (split_entry.index["steps"], *split_entry.labels.values())
        for column, num_uses in Counter(column for table in tables for column in table.columns).items():
            if num_uses > 1:
                yield f"split {split_name} has the column {column!r} twice, among steps and labels"
        yield from _wrong_totals(f"split {split_name}", split_entry, split_entry.shards)
        for stem, num_uses in Counter(shard.name for shard in split_entry.shards).items():
            if num_uses > 1:
                yield f"split {split_name} lists shard {stem} twice"
            if split_of(stem) != split_name:
                yield f"shard {stem} is listed under split {split_name}, where it does not belong"
    yield from _wrong_totals("the dataset", manifest, list(manifest.splits.values()))
    for split_name, vectors in manifest.statistics.items():
        for vector_name, statistics in vectors.items():
            lengths = {key: len(value) for key, value in statistics if isinstance(value, tuple)}
            if len(set(lengths.values())) > 1:
                yield f"statistics of {vector_name} in split {split_name} differ in length: {lengths}"


def _wrong_totals(
    context: str, entry: Manifest | SplitEntry, parts: Sequence[SplitEntry | ShardEntry]
) -> Iterator[str]:
    for count_name in ("episodes", "steps", "records"):
        stated, total = getattr(entry, count_name), sum(getattr(part, count_name) for part in parts)
        if total != stated:
            yield f"{context} says {stated} {count_name}, its parts add up to {total}"


class Fetched(_Model):
    """Content of ``fetched.json``, which lists the shards that are present where ``pairstream fetch`` copied only some.

    Manifest and indexes are those of the complete dataset, so samples have the same numbers, batches the same content
    and ``loader.json`` the same fingerprints as on the source root. A dataset without this file is complete.

    Attributes:
        source: Root that the shards came from.
        data: ``Manifest.data``, the checksum without labels.
        shards: Names of the shards that are present and checked; the index of their splits is too.
    """

    source: str
    data: str
    shards: tuple[str, ...]


def read_fetched(dataset_folder: Path) -> Fetched | None:
    """Read the file; return None if the dataset is complete. Raise FormatError if the file cannot be used."""
    fetched_path = dataset_folder / FETCHED_NAME
    try:
        return Fetched.model_validate_json(fetched_path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise FormatError(f"{fetched_path}: {first_fault(error)}; remove it, and fetch the dataset again") from None


def write_fetched(dataset_folder: Path, fetched: Fetched) -> None:
    """Write the file atomically."""
    write_atomically(dataset_folder / FETCHED_NAME, fetched.model_dump_json(indent=1) + "\n", suffix=PARTIAL)
