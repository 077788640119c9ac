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
        for split, split_entry in self.splits.items():
            for kind, table_entry in split_entry.index.items():
                yield self.folder / split / table_file(kind), table_entry
            for labels_name, table_entry in split_entry.labels.items():
                yield label_path(self.folder / split, labels_name, table_entry), table_entry
            for entry in split_entry.shards:
                yield self.folder / split / shard_file(entry.name), entry.file

    @property
    def registry_hint(self) -> str | None:
        """Remedy if the packaged registry has another entry of this dataset and version, else None."""
        spec = load_registry().datasets.get(self.manifest.dataset) if self.manifest is not None else None
        if self.manifest is None or spec is None or spec.version != self.manifest.version:
            return None
        hint = reindex_hint(self.manifest.spec, spec, output_root=self.folder.absolute().parent.parent)
        return hint and f"{hint}, unless the entry came from a --config of your own"


def find_datasets(output_root: str | os.PathLike[str], dataset_names: Sequence[str] | None) -> list[Path]:
    """Return the version folders at or below ``output_root``, sorted: those of some names, or all.

    Raises:
        UsageError: No conversion or no dataset of a name exists here (names the closest), or these are sources.
    """
    if "://" in str(output_root):
        remedy = "copy it with `pairstream fetch`, which checks every file"
        raise UsageError(f"{output_root}: only local folders can be checked; {remedy}")
    top_folder = Path(output_root)
    if not top_folder.is_dir():
        reason = "is a file" if top_folder.exists() else "no such folder"
        raise UsageError(f"{output_root}: {reason}; expected a conversion's --output")
    folders = sorted((top_folder, *top_folder.glob("[!.]*"), *top_folder.glob("[!.]*/[!.]*")))
    version_folders = [folder for folder in folders if folder.is_dir() and _is_version(folder)]
    name_by_folder = {folder: VersionFolder(folder=folder).dataset for folder in version_folders}
    for folder, name in name_by_folder.items():
        if (folder / "dataset_info.json").is_file() and not (folder / MANIFEST_NAME).exists():
            raise UsageError(
                f"{folder}: is a TFDS dataset that is not converted; convert a few episodes first: python -m "
                f"convert.run --datasets {name} --source {folder.absolute().parent.parent} --episodes 'train[:20]' "
                "--output DIR, and name DIR"
            )
    if not name_by_folder:
        expected = f"expected <dataset>/<version>/{MANIFEST_NAME} below it"
        raise UsageError(f"{output_root}: nothing was converted here; {expected}")
    for name in dataset_names or ():
        if name not in name_by_folder.values():
            hint = closest(name, set(name_by_folder.values()), noun="datasets")
            raise UsageError(f"{output_root}: no dataset {name!r}; {hint}")
    chosen = [folder for folder, name in name_by_folder.items() if dataset_names is None or name in dataset_names]
    for folder in chosen:
        if (folder / FETCHED_NAME).exists():
            reason = f"was fetched in part ({FETCHED_NAME}), and pairstream fetch checked its files"
            raise UsageError(f"{folder}: {reason}; check the complete dataset at its source")
    return chosen


def _is_version(folder: Path) -> bool:
    """Return whether a folder is named like a version, or has at least some files of a conversion."""
    return (
        bool(_VERSION.fullmatch(folder.name))
        or any((folder / name).exists() for name in (MANIFEST_NAME, FOLDER, QUARANTINE_NAME))
        or any(path.name.startswith(f"{path.parent.name}-") for path in folder.glob("[!.]*/*.arrayrecord"))
    )
