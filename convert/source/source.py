"""The source of a conversion: location, shard files and chosen episodes of a TFDS dataset."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import tensorflow_datasets as tfds

from convert.errors import SourceError, UsageError
from convert.source.features import Feature, flatten_features
from convert.source.metadata import MAX_BYTES, NAMES, read_metadata
from convert.storage.object_store import StoreFolder
from convert.storage.staging import stage, staging_base
from stream.storage.errors import closest
from stream.storage.remote import LocalFolder, is_remote, join

_SPLIT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")

Span = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class SourceShard:
    """One shard file.

    Attributes:
        records: Count of records according to the dataset's metadata.
        bytes: Size of the file.
    """

    split: str
    index: int
    count: int
    path: str
    name: str
    records: int
    bytes: int

    def open(self) -> BinaryIO:
        """Open the file to read it from its start to its end; raises OSError or RemoteError."""
        if is_remote(self.path):
            return StoreFolder(self.path.rpartition("/")[0]).open(self.name, size=self.bytes)
        return Path(self.path).open("rb")


@dataclass(frozen=True, kw_only=True)
class SourceDataset:
    """A TFDS dataset that was found.

    Attributes:
        path: Folder, ``<root>/<tfds_name>/<version>``.
        fingerprint: SHA-256 of its two metadata files.
        features: Leaves of its feature tree by path.
        splits: Count of records of each shard, by split.
    """

    path: str
    fingerprint: str
    features: Mapping[str, Feature]
    splits: Mapping[str, tuple[int, ...]]
    _info: Any = field(repr=False, compare=False)

    def shards(self, split: str) -> tuple[SourceShard, ...]:
        """Return the shard files of a split, in order.

        Raises:
            SourceError: Files are missing; says how many and which.
        """
        try:
            # Only the names count: metadata from elsewhere may name files outside of the folder.
            names = [Path(path).name for path in self._info.splits[split].filepaths]
        except Exception as error:
            raise SourceError(f"{self.path}: dataset_info.json gives split {split} no files ({error})") from None
        if is_remote(self.path):
            sizes = StoreFolder(self.path).sizes()
        else:
            sizes = {path.name: path.stat().st_size for path in Path(self.path).iterdir() if path.is_file()}
        if missing := [name for name in names if name not in sizes]:
            raise SourceError(
                f"{self.path}: {len(missing)} of {len(names)} files of split {split} are missing: "
                f"{', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}; copy them, or leave the split out "
                "with --splits"
            )
        return tuple(
            SourceShard(
                split=split,
                index=index,
                count=len(names),
                path=join(self.path, name),
                name=name,
                records=self.splits[split][index],
                bytes=sizes[name],
            )
            for index, name in enumerate(names)
        )

    def select_splits(self, names: Sequence[str] | None) -> list[str]:
        """Return the named splits, or all that have episodes.

        Raises:
            UsageError: A split does not exist (names the closest), or has no episodes.
        """
        if names is None:
            found = [name for name, lengths in self.splits.items() if sum(lengths)]
            if not found:
                raise SourceError(f"{self.path}: no split has any episode (splits: {self._listed()})")
            return found
        for name in names:
            if name not in self.splits:
                raise UsageError(f"{self.path}: no split {name!r}; {closest(name, self.splits, noun='splits')}")
            if not sum(self.splits[name]):
                raise SourceError(f"{self.path}: split {name!r} has no episodes")
        return list(names)

    def select_episodes(self, expression: str) -> dict[str, dict[int, tuple[Span, ...]]]:
        """Resolve a TFDS split expression such as ``train[:5%]`` or ``train[:10]+val``.

        Returns:
            By split and shard index, the ranges [start, stop) of record numbers, sorted and apart.

        Raises:
            UsageError: The expression is not of TFDS's grammar, names an unknown split, or leaves nothing.
        """
        try:
            terms = tfds.core.ReadInstruction.from_spec(expression).to_absolute(self._info.splits)
        except (ValueError, KeyError, AssertionError, NotImplementedError, RecursionError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UsageError(f"{self.path}: episodes {expression!r}: {reason} (splits: {self._listed()})") from None
        ranges: dict[str, list[slice]] = {}
        for term in terms:
            ranges.setdefault(term.splitname, []).append(slice(term.from_, term.to))
        chosen = {split: shard_spans(self.splits[split], slices) for split, slices in ranges.items()}
        if not any(chosen.values()):
            raise UsageError(
                f"{self.path}: episodes {expression!r} leaves nothing of {self._listed()}; take a wider range"
            )
        return {split: spans for split, spans in chosen.items() if spans}

    def _listed(self) -> str:
        return ", ".join(f"{name}: {sum(lengths):,} episodes" for name, lengths in self.splits.items()) or "none"


def shard_spans(lengths: Sequence[int], slices: Iterable[slice]) -> dict[int, tuple[Span, ...]]:
    """Return the ranges [start, stop) of record numbers, by shard, of some slices of a split; sorted and apart.

    >>> shard_spans((3, 0, 4), [slice(2, 5)])
    {0: ((2, 3),), 2: ((0, 2),)}
    """
    wanted = np.zeros(sum(lengths), np.bool_)
    for chosen in slices:
        wanted[chosen] = True
    found = {}
    for index, part in enumerate(np.split(wanted, np.cumsum(lengths)[:-1])):
        edges = np.flatnonzero(np.diff(part, prepend=False, append=False)).tolist()
        if edges:
            found[index] = tuple(zip(edges[::2], edges[1::2], strict=True))
    return found


def find_source(roots: Sequence[str], tfds_name: str, version: str) -> SourceDataset:
    """Find a dataset below one of several roots; the first that has it wins.

    Args:
        roots: Folders, local, ``gs://`` or ``s3://``, with ``<tfds_name>/<version>`` below.
        tfds_name: Name of the TFDS dataset.
        version: Version of the dataset.

    Raises:
        SourceError: No root has the dataset (says which versions there are), or it is not a complete TFDS folder.
        stream.storage.remote.RemoteError: A bucket cannot be read.
    """
    for root in roots:
        folder = _folder(root) / tfds_name / version
        if folder.size(NAMES[0]) is None:
            continue
        if folder.size(NAMES[1]) is None:
            raise SourceError(f"{folder}: has {NAMES[0]} but no {NAMES[1]}, so it cannot be read; copy it again")
        if isinstance(folder, LocalFolder):
            return _open(folder.path, path=str(folder))
        # TFDS itself would take TensorFlow to read a bucket.
        small = [
            name for name, size in folder.sizes().items() if name.endswith((".json", ".txt")) and size <= MAX_BYTES
        ]
        with stage(staging_base(None)) as copy:
            for name, content in folder.read_some(small).items():
                (copy / name).write_bytes(content)
            return _open(copy, path=str(folder))
    raise SourceError(_not_found(roots, tfds_name, version))


def _folder(root: str) -> LocalFolder | StoreFolder:
    return StoreFolder(root) if is_remote(root) else LocalFolder(Path(root))


def _open(folder: Path, *, path: str) -> SourceDataset:
    """Open a dataset by its metadata in a local folder; ``path`` is the location of the dataset itself."""
    contents = read_metadata(folder)
    try:
        info = tfds.builder_from_directory(folder).info
        features = flatten_features(info.features, where=path)
        kind = "tfrecord" if info.file_format is None else str(info.file_format.value)
        splits = {name: tuple(split.shard_lengths) for name, split in sorted(info.splits.items())}
    except SourceError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
        raise SourceError(f"{path}: TFDS cannot read its metadata ({reason}); copy it again") from error
    if kind != "tfrecord":
        raise SourceError(f"{path}: its files are {kind}, only TFRecord can be converted")
    for name, lengths in splits.items():
        if not _SPLIT.fullmatch(name) or min(lengths, default=0) < 0:
            raise SourceError(
                f"{path}: {NAMES[0]} has a split {name!r:.100} of {sum(lengths)} episodes; splits become folders, so "
                "their names have letters, digits and ._+-, and their shards 0 or more episodes"
            )
    digest = hashlib.sha256(b"".join(hashlib.sha256(content).digest() for content in contents))
    return SourceDataset(path=path, fingerprint=digest.hexdigest(), features=features, splits=splits, _info=info)


def _not_found(roots: Sequence[str], tfds_name: str, version: str) -> str:
    present: set[str] = set()
    for root in roots:
        folder = _folder(root)
        names = folder.folders()
        if not names and not (isinstance(folder, LocalFolder) and folder.path.exists()):
            return f"no such source: {root} (looked for {tfds_name}/{version} below it)"
        versions = [name for name in (folder / tfds_name).folders() if (folder / tfds_name / name).size(NAMES[0])]
        if versions:
            return (
                f"{folder / tfds_name} has version {', '.join(versions)}, not {version}; give the right version with "
                "--config (datasets: {NAME: {version: ...}})"
            )
        present.update(names)
    tried = ", ".join(join(root, tfds_name, version) for root in roots)
    hint = f"; {closest(tfds_name, present, noun='folders')}" if present else ""
    return f"dataset {tfds_name} {version} is in none of the sources: tried {tried}{hint}"
