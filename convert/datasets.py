"""Version folders of converted datasets below a root."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from convert.errors import UsageError
from convert.journal.journal import FOLDER
from convert.registry.dataset import reindex_hint
from convert.registry.registry import load_registry
from stream.base.errors import closest
from stream.format.index import label_path
from stream.format.manifest import FileEntry, Manifest, SplitEntry
from stream.format.names import FETCHED_NAME, MANIFEST_NAME, QUARANTINE_NAME, shard_file, table_file

_VERSION = re.compile(r"\d+\.\d+\.\d+")


@dataclass(kw_only=True)
class VersionFolder:
    """One version of a dataset, ``ROOT/<dataset>/<version>``; ``manifest`` is None if it is missing or damaged."""

    folder: Path
    manifest: Manifest | None = None

    @property
    def dataset(self) -> str:
        """Name of the dataset."""
        return Path(os.path.abspath(self.folder)).parent.name

    @property
    def version(self) -> str:
        """Version of the dataset."""
        return Path(os.path.abspath(self.folder)).name

    @property
    def splits(self) -> dict[str, SplitEntry]:
        """Splits of the manifest."""
        return self.manifest.splits if self.manifest is not None else {}

    def files(self) -> Iterator[tuple[Path, FileEntry]]:
        """Yield each table, those of labels included, and each shard of the manifest with its entry."""
        for split, entry in self.splits.items():
            for kind, table in entry.index.items():
                yield self.folder / split / table_file(kind), table
            for name, table in entry.labels.items():
                yield label_path(self.folder / split, name, table), table
            for shard in entry.shards:
                yield self.folder / split / shard_file(shard.name), shard.file

    @property
    def registry_hint(self) -> str | None:
        """Remedy if the packaged registry has changed since the conversion, else None.

        A dataset or version that the packaged registry does not have differs in nothing.
        """
        spec = load_registry().datasets.get(self.manifest.dataset) if self.manifest is not None else None
        if self.manifest is None or spec is None or spec.version != self.manifest.version:
            return None
        hint = reindex_hint(self.manifest.spec, spec, root=self.folder.absolute().parent.parent)
        return hint and f"{hint}, unless the entry came from a --config of your own"


def find_datasets(root: str | os.PathLike[str], names: Sequence[str] | None) -> list[Path]:
    """Return the version folders at or below ``root``, sorted.

    Args:
        root: Output root, folder of a dataset, or version folder.
        names: Names of the datasets to choose, None for all.

    Raises:
        UsageError: No conversion or no dataset of a name exists here (names the closest), or these are sources.
    """
    if "://" in str(root):
        raise UsageError(
            f"{root}: only local folders can be checked; copy it with `pairstream fetch`, which checks every file"
        )
    top = Path(root)
    if not top.is_dir():
        raise UsageError(
            f"{root}: {'is a file' if top.exists() else 'no such folder'}; expected a conversion's --output"
        )
    below = [folder for folder in (top, *top.glob("[!.]*"), *top.glob("[!.]*/[!.]*")) if folder.is_dir()]
    found = {folder: VersionFolder(folder=folder).dataset for folder in sorted(below) if _is_version(folder)}
    for folder in found:
        if (folder / "dataset_info.json").is_file() and not (folder / MANIFEST_NAME).exists():
            source = folder.absolute().parent.parent
            raise UsageError(
                f"{folder}: is a TFDS dataset that is not converted; convert a few episodes first: python -m "
                f"convert.run --datasets {found[folder]} --source {source} --episodes 'train[:20]' --output DIR, and "
                "name DIR"
            )
    if not found:
        raise UsageError(f"{root}: nothing was converted here; expected <dataset>/<version>/{MANIFEST_NAME} below it")
    for name in names or ():
        if name not in found.values():
            raise UsageError(f"{root}: no dataset {name!r}; {closest(name, set(found.values()), noun='datasets')}")
    chosen = [folder for folder, name in found.items() if names is None or name in names]
    for folder in chosen:
        if (folder / FETCHED_NAME).exists():
            raise UsageError(
                f"{folder}: was fetched in part ({FETCHED_NAME}), and pairstream.fetch checked its files; check the "
                "complete dataset at its source"
            )
    return chosen


def _is_version(folder: Path) -> bool:
    """Return whether a folder is named like a version, or has at least some files of a conversion."""
    return (
        bool(_VERSION.fullmatch(folder.name))
        or any((folder / name).exists() for name in (MANIFEST_NAME, FOLDER, QUARANTINE_NAME))
        or any(file.name.startswith(f"{file.parent.name}-") for file in folder.glob("[!.]*/*.arrayrecord"))
    )
