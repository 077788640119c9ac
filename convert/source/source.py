"""The source of a conversion: where a TFDS dataset lies, which shard files it has, and which episodes are asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

from etils import epath

from convert.errors import SourceError, UsageError
from convert.source.features import Feature, flatten_features
from convert.source.metadata import NAMES, check_inside, check_metadata
from convert.storage.object_store import StoreFolder
from convert.storage.staging import stage, staging_base
from stream.storage.errors import closest
from stream.storage.remote import is_remote, join

_STAT_THREADS = 32
_MAX_NAME = 255
_MAX_METADATA = 64 << 20

Span = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class SourceShard:
    """One shard file. records: how many the dataset's metadata says it has. bytes: its size."""

    split: str
    index: int
    count: int
    path: str
    name: str
    records: int
    bytes: int

    def open(self) -> BinaryIO:
        """Open the file, to read it from its start to its end; raises OSError or RemoteError."""
        if is_remote(self.path):
            return StoreFolder(self.path.rpartition("/")[0]).open(self.name, size=self.bytes)
        return cast(BinaryIO, epath.Path(self.path).open("rb"))


@dataclass(frozen=True, kw_only=True)
class SourceDataset:
    """A TFDS dataset that was found.

    path: its folder, ``<root>/<tfds_name>/<version>``. fingerprint: SHA-256 of its two metadata files.
    """

    path: str
    fingerprint: str
    features: Mapping[str, Feature]
    splits: Mapping[str, tuple[int, ...]]
    _info: Any = field(repr=False, compare=False)

    def shards(self, split: str) -> tuple[SourceShard, ...]:
        """Return the shard files of a split, in order.

        Raises:
            SourceError: files are missing; says how many and which.
        """
        try:
            files = [epath.Path(path) for path in self._info.splits[split].filepaths]
        except Exception as error:
            raise SourceError(f"{self.path}: dataset_info.json gives split {split} no files ({error})") from None
        for file in files:
            check_inside(str(self._info.data_dir), file)
            if len(file.name) > _MAX_NAME or "\0" in file.name:
                raise SourceError(
                    f"{self.path}: dataset_info.json names a file {file.name!r:.60}, which no file can be"
                )
        names = [file.name for file in files]
        paths = [join(self.path, name) for name in names]
        sizes = self._file_sizes(names)
        missing = [name for name, size in zip(names, sizes, strict=True) if size is None]
        if missing:
            raise SourceError(
                f"{self.path}: {len(missing)} of {len(paths)} files of split {split} are missing: "
                f"{', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}; copy them, or leave the split out "
                "with --splits"
            )
        return tuple(
            SourceShard(
                split=split,
                index=index,
                count=len(paths),
                path=path,
                name=name,
                records=self.splits[split][index],
                bytes=size or 0,
            )
            for index, (path, name, size) in enumerate(zip(paths, names, sizes, strict=True))
        )

    def _file_sizes(self, names: Sequence[str]) -> list[int | None]:
        if is_remote(self.path):
            there = StoreFolder(self.path).sizes()
            return [there.get(name) for name in names]
        with ThreadPoolExecutor(_STAT_THREADS) as pool:
            return list(pool.map(_size, [epath.Path(self.path) / name for name in names]))

    def select_splits(self, names: Sequence[str] | None) -> list[str]:
        """Return the splits to convert: those named, or all that have episodes.

        Raises:
            UsageError: no such split (names those there are), or it has no episodes.
        """
        if names is None:
            found = [name for name, lengths in self.splits.items() if sum(lengths)]
            if not found:
                raise SourceError(f"{self.path}: no split has any episode (splits: {_listed(self.splits)})")
            return found
        for name in names:
            if name not in self.splits:
                hint = closest(name, self.splits, noun="splits")
                raise UsageError(f"{self.path}: no split {name!r}; {hint}")
            if not sum(self.splits[name]):
                raise SourceError(f"{self.path}: split {name!r} has no episodes")
        return list(names)

    def select_episodes(self, expression: str) -> dict[str, dict[int, tuple[Span, ...]]]:
        """Resolve a TFDS split expression such as ``train[:5%]`` or ``train[:10]+val``.

        Returns:
            By split and shard index, the ranges [start, stop) of record numbers, sorted and apart.

        Raises:
            UsageError: not an expression of TFDS's grammar, an unknown split, or nothing left.
        """
        import tensorflow_datasets as tfds

        try:
            terms = tfds.core.ReadInstruction.from_spec(expression).to_absolute(self._info.splits)
        except (ValueError, KeyError, AssertionError, NotImplementedError, RecursionError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UsageError(
                f"{self.path}: episodes {expression!r}: {reason} (splits: {_listed(self.splits)})"
            ) from None
        chosen: dict[str, dict[int, tuple[Span, ...]]] = {}
        for term in terms:
            lengths = self.splits[term.splitname]
            stop = sum(lengths) if term.to is None else term.to
            for index, span in shard_spans(lengths, start=term.from_ or 0, stop=stop):
                spans = chosen.setdefault(term.splitname, {})
                spans[index] = merge_spans((*spans.get(index, ()), span))
        if not chosen:
            raise UsageError(
                f"{self.path}: episodes {expression!r} leaves nothing of {_listed(self.splits)}; take a wider range"
            )
        return chosen


def find_source(roots: Sequence[str], tfds_name: str, version: str) -> SourceDataset:
    """Find a dataset below one of several roots; the first that has it wins.

    Args:
        roots: folders, local, ``gs://`` or ``s3://``, with ``<tfds_name>/<version>`` below.

    Raises:
        SourceError: in none of them (says which versions there are), or not a complete TFDS folder.
        stream.storage.remote.RemoteError: a bucket cannot be read.
    """
    for root in roots:
        if is_remote(root):
            remote = StoreFolder(join(root, tfds_name, version))
            if "dataset_info.json" in (sizes := remote.sizes()):
                return _open_remote(remote, sizes)
            continue
        folder = epath.Path(root) / tfds_name / version
        if (folder / "dataset_info.json").exists():
            return _open(folder)
    raise SourceError(_not_found(roots, tfds_name, version))


def _open_remote(remote: StoreFolder, sizes: Mapping[str, int]) -> SourceDataset:
    """Open a dataset by a local copy of its metadata: TFDS itself would take TensorFlow to read a bucket."""
    wanted = [name for name, size in sizes.items() if name.endswith((".json", ".txt")) and size <= _MAX_METADATA]
    with stage(staging_base(None)) as folder:
        for name, content in remote.read_some(wanted).items():
            (folder / name).write_bytes(content)
        return _open(epath.Path(folder), path=str(remote))


def _open(folder: epath.Path, *, path: str = "") -> SourceDataset:
    """``path``: where the dataset lies, if ``folder`` is a copy of its metadata."""
    path = path or str(folder)
    import tensorflow_datasets as tfds

    if not (folder / "features.json").exists():
        raise SourceError(f"{path}: has dataset_info.json but no features.json, so it cannot be read; copy it again")
    check_metadata(folder)
    try:
        info = tfds.builder_from_directory(folder).info
        features = flatten_features(info.features, where=path)
        declared = info.file_format
        kind = "tfrecord" if declared is None else str(declared.value)
        splits = {name: tuple(split.shard_lengths) for name, split in sorted(info.splits.items())}
    except SourceError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise SourceError(
            f"{path}: TFDS cannot read its metadata ({type(error).__name__}: {reason[0] if reason else ''}); "
            "copy it again"
        ) from error
    if kind != "tfrecord":
        raise SourceError(f"{path}: its files are {kind}, only TFRecord can be converted")
    digest = hashlib.sha256()
    for name in NAMES:
        digest.update(hashlib.sha256((folder / name).read_bytes()).digest())
    if wrong := next((name for name, lengths in splits.items() if min(lengths, default=0) < 0), None):
        raise SourceError(f"{path}: dataset_info.json has a shard of {min(splits[wrong])} episodes in split {wrong}")
    return SourceDataset(path=path, fingerprint=digest.hexdigest(), features=features, splits=splits, _info=info)


def _not_found(roots: Sequence[str], tfds_name: str, version: str) -> str:
    tried = ", ".join(join(root, tfds_name, version) for root in roots)
    present: set[str] = set()
    for root in roots:
        folders = _folders(root)
        if folders is None:
            return f"no such source: {root} (looked for {tfds_name}/{version} below it)"
        versions = _versions(root, tfds_name) if tfds_name in folders else []
        if versions:
            return (
                f"{join(root, tfds_name)} has version {', '.join(versions)}, not {version}; give the right version "
                f"with --config (datasets: {{NAME: {{version: ...}}}})"
            )
        present.update(folders)
    hint = f"; {closest(tfds_name, present, noun='folders')}" if present else ""
    return f"dataset {tfds_name} {version} is in none of the sources: tried {tried}{hint}"


def _folders(root: str) -> list[str] | None:
    """Names of the folders in a root; None if it is not there."""
    if is_remote(root):
        return StoreFolder(root).folders() or None
    path = epath.Path(root)
    return [entry.name for entry in path.iterdir() if entry.is_dir()] if path.exists() else None


def _versions(root: str, tfds_name: str) -> list[str]:
    """The versions of a dataset that have metadata."""
    if is_remote(root):
        folder = StoreFolder(join(root, tfds_name))
        return [name for name in folder.folders() if "dataset_info.json" in (folder / name).sizes()]
    folders = (epath.Path(root) / tfds_name).iterdir()
    return sorted(path.name for path in folders if (path / "dataset_info.json").exists())


def _size(path: epath.Path) -> int | None:
    try:
        return int(path.stat().length)
    except FileNotFoundError:
        return None


def _listed(splits: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{name}: {sum(lengths):,} episodes" for name, lengths in splits.items()) or "none"


def shard_spans(lengths: Sequence[int], *, start: int, stop: int) -> Iterator[tuple[int, Span]]:
    """Yield (shard, range of record numbers in it) for the episodes [start, stop) of a split; nothing if it is empty.

    TFDS's own ``file_instructions`` read to the end of the shard where stop is below start.

    >>> list(shard_spans((3, 0, 4), start=2, stop=5))
    [(0, (2, 3)), (2, (0, 2))]
    """
    first = 0
    for index, length in enumerate(lengths):
        span = (max(start - first, 0), min(stop - first, length))
        if span[0] < span[1]:
            yield index, span
        first += length


def merge_spans(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Sort ranges [start, stop) and join those that touch or overlap.

    >>> merge_spans([(5, 8), (0, 2), (2, 3), (6, 9)])
    ((0, 3), (5, 9))
    """
    merged: list[Span] = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return tuple(merged)
