"""Catalog of a converted root: its datasets, versions, splits and shards, read from the manifests."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from stream.base.errors import ArgumentError, FormatError, closest
from stream.format.fields import Fields, read_fields
from stream.format.manifest import Fetched, Manifest, read_fetched, read_manifest
from stream.format.names import FETCHED_NAME, MANIFEST_NAME, TableKind
from stream.format.record_file import SplitShards
from stream.storage.remote import CachedRoot, LocalFolder, checked_url, is_remote
from stream.storage.remote_folder import Folder

_THREADS = 16
"""Folders listed at the same time."""
_MOST_LISTED = 5
"""Roots that a message lists."""
_TFDS_FILE = "dataset_info.json"


@dataclass(frozen=True)
class Dataset:
    """A converted dataset.

    Attributes:
        folder: ``ROOT/<dataset>/<version>``.
        manifest: Manifest without its lists of shards, which take much memory as objects.
        shards: Shards by split.
        fetched: Shards that are present, or None if all are.
        remote: Location of the shards if they are read in place, else None.
    """

    name: str
    version: str
    folder: Path
    manifest: Manifest
    shards: Mapping[str, SplitShards]
    fetched: Fetched | None = None
    remote: CachedRoot | None = None

    @classmethod
    def of(
        cls,
        name: str,
        version: str,
        folder: Path,
        manifest: Manifest,
        fetched: Fetched | None = None,
        remote: CachedRoot | None = None,
    ) -> Dataset:
        """Return the dataset of a complete manifest."""
        shards = {split: SplitShards.of(entry.shards) for split, entry in manifest.splits.items()}
        entries = {split: entry.model_copy(update={"shards": ()}) for split, entry in manifest.splits.items()}
        return cls(name, version, folder, manifest.model_copy(update={"splits": entries}), shards, fetched, remote)

    @cached_property
    def fields(self) -> Fields:
        """Fields of the manifest's free-form parts that a loader uses; raise FormatError if one is wrong."""
        return read_fields(self.manifest, context=str(self.folder / MANIFEST_NAME))

    @property
    def shard_lengths(self) -> dict[str, list[int]]:
        """Episode counts of the shards, by split, in the order of the source."""
        return {split: shards.episodes.tolist() for split, shards in self.shards.items()}

    def fingerprint(self, columns: Iterable[tuple[str, TableKind, str]]) -> str:
        """Return a hash of columns (split, table, name), independent of the rest of the manifest.

        Raises FormatError if the manifest lacks a column.
        """
        column_entries = []
        for split, kind, column_name in sorted(set(columns)):
            entry = self.manifest.splits[split]
            column_hashes = entry.columns(kind)
            if column_name not in column_hashes:
                problem = f"no column {column_name!r} of {kind}; convert this dataset again"
                raise FormatError(f"{self.folder / MANIFEST_NAME}: {problem}")
            column_entries.append((split, kind, column_name, getattr(entry, kind), column_hashes[column_name]))
        return hashlib.sha256(json.dumps(column_entries).encode()).hexdigest()[:16]


class Catalog:
    """The datasets below a root that ``convert.run`` wrote; each manifest is read once, when its dataset is opened.

    Attributes:
        root: Local folder of manifests and indexes.
        location: Root to open again: this folder, with or without a cache for members, or the remote root that this
            folder caches.

    Raises:
        ArgumentError: The folder does not exist.
    """

    def __init__(self, root: str | Path) -> None:
        if not isinstance(root, str | os.PathLike):
            raise ArgumentError(f"root={root!r:.100}; expected a folder that convert.run wrote to")
        if is_remote(root):
            root = checked_url(root)
            remedy = (
                f"bring what a mixture needs with `pairstream fetch {root} LOCAL --mixture MIXTURE`, and open LOCAL"
            )
            raise ArgumentError(f"{root}: this reads local folders; {remedy}")
        # Files are opened later too, also by processes with another current folder.
        self.root = Path(os.path.abspath(root))
        try:
            is_folder = self.root.is_dir()
        except OSError as error:
            raise ArgumentError(f"{self.root!s:.200}: cannot be opened ({error.strerror})") from None
        if not is_folder:
            raise ArgumentError(f"{self.root}: no such folder; give the --output of a conversion")
        self.location: Path | CachedRoot = self.root
        self._source: Folder = LocalFolder(self.root)
        self._open: dict[str, Dataset] = {}

    @cached_property
    def versions(self) -> dict[str, list[str]]:
        """Versions of each dataset, oldest first, incomplete ones included."""
        dataset_names = [name for name in self._source.folders() if not name.startswith(".")]
        with ThreadPoolExecutor(_THREADS) as executor:
            subfolders = executor.map(lambda dataset_name: (self._source / dataset_name).folders(), dataset_names)
            versions = {
                dataset_name: sorted((name for name in folders if not name.startswith(".")), key=version_key)
                for dataset_name, folders in zip(dataset_names, subfolders, strict=True)
            }
        return {dataset_name: folders for dataset_name, folders in versions.items() if folders}

    def check_converted(self, *folders: str) -> None:
        """Raise ArgumentError if the root holds a TFDS dataset, the input of ``convert.run``, or is no root.

        ``folders`` are patterns to check; by default the root and two levels below it, unless a dataset is converted.
        """
        if not folders and self.complete:
            return
        for pattern in folders or ("*/*", "*", "."):
            for file in self.root.glob(f"{pattern}/{_TFDS_FILE}"):
                options = f"--datasets NAMES --source {file.parent.parent.parent} --output OUTPUT"
                remedy = f"convert it with `python -m convert.run {options}`, and open OUTPUT"
                raise ArgumentError(f"{file.parent}: is a TFDS dataset that is not converted; {remedy}")
        if folders:
            return
        if (self.root / MANIFEST_NAME).exists() or any(self.root.glob(f"*/{MANIFEST_NAME}")):
            raise ArgumentError(f"{self.root}: is the folder of one dataset; give the root that holds all of them")
        manifests = self.root.glob(f"[!.]*/*/*/{MANIFEST_NAME}")
        if nested_roots := sorted({str(manifest.parents[2]) for manifest in manifests}):
            ellipsis = f" and {len(nested_roots) - _MOST_LISTED} more" if len(nested_roots) > _MOST_LISTED else ""
            listed = " or ".join(nested_roots[:_MOST_LISTED]) + ellipsis
            raise ArgumentError(f"{self.root}: holds roots, not datasets; give {listed}")
        expected = f"expected <dataset>/<version>/{MANIFEST_NAME} below the root"
        raise ArgumentError(f"{self.root}: holds no complete conversion; {expected}")

    @property
    def complete(self) -> list[str]:
        """Names of the datasets with a complete conversion, that is, with a manifest."""
        return [dataset_name for dataset_name in self.versions if self._newest(dataset_name)]

    def open(self, reference: str) -> Dataset:
        """Open a dataset: ``bridge`` for its highest complete version, or ``bridge:0.1.0``.

        Raises:
            ArgumentError: The dataset does not exist or is not complete; the message lists the closest names.
            FormatError: The manifest cannot be used.
        """
        if reference not in self._open:
            name, _, version = reference.partition(":")
            if name not in self.versions:
                self.check_converted()
                hint = closest(name, self.versions, noun="datasets")
                hint = hint if hint.endswith("?") else f"{hint}."
                remedy = "Convert it with `python -m convert.run`, or leave it out of a mixture with weight 0"
                raise ArgumentError(f"{self._source}: no dataset {name!r}; {hint} {remedy}")
            folder, versions = self._source / name, ", ".join(self.versions[name])
            if version and version not in self.versions[name]:
                raise ArgumentError(f"{folder}: no version {version!r}; versions there: {versions}")
            version = version or self._newest(name)
            if not version or not self._has(MANIFEST_NAME, name, version):
                if any(self._has(FETCHED_NAME, name, candidate) for candidate in self.versions[name]):
                    advice = "run the same `pairstream fetch` command again to finish it"
                    raise ArgumentError(f"{folder}: its fetch is not complete; {advice}")
                self.check_converted(f"{name}/{version or '*'}")
                problem = f"no {MANIFEST_NAME} in {version or versions}, so its conversion is not complete"
                advice = "run the same `python -m convert.run` command again to finish it"
                raise ArgumentError(f"{folder}: {problem}; {advice}")
            self._open[reference] = self._read(name, version)
        return self._open[reference]

    def open_all(self, references: Sequence[str]) -> list[Dataset]:
        """Open several datasets, see ``open``."""
        return list(map(self.open, references))

    def forget(self, reference: str) -> None:
        """Read the manifest of a dataset again when it is opened next."""
        self._open.pop(reference, None)

    def _read(self, dataset_name: str, version: str) -> Dataset:
        folder = self.root / dataset_name / version
        manifest, fetched = read_manifest(folder), read_fetched(folder)
        if fetched is not None and fetched.data != manifest.data:
            remedy = "remove this folder, and fetch the dataset again"
            raise FormatError(f"{folder}: {FETCHED_NAME} belongs to another conversion than {MANIFEST_NAME}; {remedy}")
        return Dataset.of(dataset_name, version, folder, manifest, fetched)

    def _has(self, file_name: str, dataset_name: str, version: str) -> bool:
        return (self._source / dataset_name / version).size(file_name) is not None

    def _newest(self, dataset_name: str) -> str:
        """Return the highest complete version of a dataset, empty if it has none."""
        versions = reversed(self.versions[dataset_name])
        return next((version for version in versions if self._has(MANIFEST_NAME, dataset_name, version)), "")


def version_key(version: str) -> tuple[list[int], str]:
    """Return a sort key that compares the numbers of a version as numbers.

    >>> sorted(["0.10.0", "0.9.0"], key=version_key)
    ['0.9.0', '0.10.0']
    """
    return [int(number) for number in re.findall(r"[0-9]+", version)[:6]], version
