"""Labels of a converted dataset: attached, replaced, taken away and listed."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stream.base.arguments import with_known_names
from stream.base.errors import ArgumentError, closest
from stream.format.catalog import Catalog, Dataset
from stream.format.index import SplitIndex, open_index, open_labels
from stream.format.manifest import NAME, Manifest, SplitEntry, TableEntry, read_manifest
from stream.format.names import DERIVED, LABELS, TABLE_KINDS, label_file, table_file, waiting_label
from stream.format.schema import TEXT
from stream.format.table import number_type, write_table
from stream.label.columns import LabelColumn, blocks
from stream.label.commit import commit_labels, settle_labels
from stream.label.given import GivenTable, open_given
from stream.label.places import Places
from stream.storage.files import alone, make_folder, place_file
from stream.storage.remote import is_remote

_PREFIXES = tuple(f"{kind}." for kind in TABLE_KINDS)
Listed = dict[str, dict[str, dict[str, dict[str, Any]]]]
"""Columns of labels by split, name of the labels, and name of the column."""


@with_known_names
def add_labels(
    root: str | Path,
    dataset: str,
    table: Any,
    *,
    name: str | None = None,
    split: str | None = None,
    columns: Sequence[str] | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Attach the columns of a table to the steps of a converted dataset, where they are columns like any other.

    A row names its episode by ``episode`` (the number in the split, as in batches), ``episode_id``, or LeRobot's
    ``episode_index``; and its step by ``step`` or ``frame_index``, the steps [start, stop) by ``start`` and ``stop``,
    or all steps by none of these. A table with LeRobot's ``index`` alone needs no other key. Rows come in any order.

    A label is a number, true or false, a text, or a list of numbers of one length. What the table does not name, and
    where its column ``<name>_mask`` of booleans is False, is missing: the mask of the column is False there, and the
    value NaN, 0 for a whole number, False, or an empty text.

    Args:
        root: Local folder that ``convert.run`` wrote, or ``pairstream.fetch`` copied.
        dataset: Name of a dataset, or ``name:version``.
        table: Parquet, CSV or Arrow file, a folder of such files, a table of pyarrow or pandas, or a mapping of names
            to columns.
        name: Name of the labels, to replace or remove them by; by default that of their only column, or of the file.
        split: Split that the table is of; by default all splits, which takes keys that are the same in all.
        columns: Columns to attach; by default all that are no keys, and no masks of others (``<name>_mask``).
        overwrite: Replace labels of the same name.

    Returns:
        ``dataset``, ``version``, ``name``, and as ``splits`` the columns of each split, see ``list_labels``.

    Raises:
        ArgumentError: An argument is wrong, or the table does not fit the dataset; the message has the counts and the
            first five. Nothing was written.
        stream.base.errors.FormatError: The dataset is damaged.
        OSError: The folder cannot be written.
    """
    if columns is not None and (isinstance(columns, str) or not all(isinstance(each, str) for each in columns)):
        raise ArgumentError(f"columns={columns!r:.100}; expected a list of names")
    given = open_given(table)
    chosen = given.chosen(columns)
    name = _check_name(name, chosen, table)
    with _changing(root, dataset) as opened, ExitStack() as stack:
        splits = _open_splits(opened, split)
        for index in splits:
            _check_free(opened.manifest.splits[index.split], index, name, chosen, overwrite=overwrite)
        folders = {index.split: Path(index.folder, LABELS) for index in splits}
        for folder in folders.values():
            make_folder(folder)
        places = Places(splits, opened, given)
        read = _read(given, chosen, places, folder=folders[splits[0].split], stack=stack)
        places.faults.raise_error(given.where, places.hint)
        present = {column.name: column.present(places.seen) for column in read}
        entries = {}
        for index, start, stop in zip(splits, places.starts[:-1].tolist(), places.starts[1:].tolist(), strict=True):
            temporary = folders[index.split] / f".{name}.{os.getpid()}.new"
            entry = entries[index.split] = write_table(temporary, None, blocks(read, start, stop, present))
            place_file(temporary, temporary.with_name(waiting_label(name, entry.sha256)))
        labels = _labels(opened.manifest)
        for place, entry in entries.items():
            labels[place][name] = entry
        commit_labels(opened.folder, labels)
        listed = _listed(_catalog(root).open(f"{opened.folder.parent.name}:{opened.version}"))
        described = {place: listed[place][name] for place in folders}
    return {"dataset": opened.name, "version": opened.version, "name": name, "splits": described}


@with_known_names
def remove_labels(root: str | Path, dataset: str, name: str, *, split: str | None = None) -> dict[str, Any]:
    """Take labels away.

    Args:
        root, dataset: As for ``add_labels``.
        name: Name of the labels, or of their only column.
        split: Split to take them from; by default all.

    Returns:
        ``dataset``, ``version``, ``name``, and as ``splits`` those that had them.

    Raises:
        ArgumentError: There are no such labels.
        OSError: The folder cannot be written.
    """
    with _changing(root, dataset) as opened:
        labels = _labels(opened.manifest)
        if split is not None and split not in labels:
            raise _no_split(opened, split)
        inside = {each: labels[each] for each in ([split] if split is not None else labels)}
        known = {each for own in inside.values() for each in own}
        if name not in known:
            named = {each for own in inside.values() for each, entry in own.items() if list(entry.columns) == [name]}
            if len(named) != 1:
                raise ArgumentError(
                    f"dataset {opened.name}: no labels {name!r:.80}; {closest(name, known, noun='labels')}"
                )
            (name,) = named
        gone = [each for each, own in inside.items() if name in own]
        for each in gone:
            folder, entry = opened.folder / each / LABELS, labels[each].pop(name)
            with contextlib.suppress(FileNotFoundError):
                place_file(folder / label_file(name), folder / waiting_label(name, entry.sha256))
        commit_labels(opened.folder, labels)
    return {"dataset": opened.name, "version": opened.version, "name": name, "splits": gone}


def list_labels(root: str | Path, dataset: str) -> Listed:
    """Return the labels of a dataset: by split and name, the ``type`` of each column and its ``missing`` steps.

    Raises:
        ArgumentError: There is no such dataset.
        stream.base.errors.FormatError: A table of labels is missing or damaged.
    """
    return _listed(_catalog(root).open(dataset))


def _listed(dataset: Dataset) -> Listed:
    found: Listed = {}
    for split, entry in dataset.manifest.splits.items():
        if not entry.labels or not (dataset.folder / split / table_file("steps")).exists():
            continue
        found[split] = {}
        for name, table in zip(entry.labels, open_labels(dataset.folder / split, entry), strict=True):
            arrow = table.arrow()
            found[split][name] = {
                field.name: {"type": _type(field), "missing": column.null_count}
                for field, column in zip(arrow.schema, arrow.columns, strict=True)
            }
    return found


def _type(field: Any) -> str:
    kind = field.type
    if kind == TEXT:
        return "text"
    is_list = hasattr(kind, "list_size")
    return f"{number_type(kind.value_type)}[{kind.list_size}]" if is_list else str(number_type(kind))


def _catalog(root: str | Path) -> Catalog:
    if is_remote(root):
        raise ArgumentError(
            f"{root}: labels are attached to local roots; bring it here with `pairstream fetch`, attach them, "
            "and copy the dataset back"
        )
    return Catalog(root)


@contextlib.contextmanager
def _changing(root: str | Path, dataset: str) -> Iterator[Dataset]:
    """Open a dataset while no other process changes its labels; names that a killed process left are put right."""
    folder = _catalog(root).open(dataset).folder
    with alone(folder, doing="changes"):
        # Another process may have changed it before the lock was free.
        opened = _catalog(root).open(dataset)
        try:
            settle_labels(folder, opened.manifest)
            yield opened
        finally:
            settle_labels(folder, read_manifest(folder))


def _open_splits(dataset: Dataset, split: str | None) -> list[SplitIndex]:
    """Return the splits that a table is of; of a dataset that was fetched in part, those that are here."""
    splits = dataset.manifest.splits
    if split is not None and split not in splits:
        raise _no_split(dataset, split)
    here = [each for each in splits if (dataset.folder / each / table_file("steps")).exists()]
    if split is not None and split not in here:
        raise ArgumentError(f"dataset {dataset.name}: split {split!r} was not fetched")
    return [open_index(dataset, each) for each in ([split] if split is not None else here)]


def _no_split(dataset: Dataset, split: str) -> ArgumentError:
    return ArgumentError(
        f"dataset {dataset.name}: no split {split!r:.80}; {closest(split, dataset.manifest.splits, noun='splits')}"
    )


def _check_name(name: str | None, columns: Sequence[str], table: Any) -> str:
    """Return the name of the labels."""
    if name is None and len(columns) == 1:
        name = columns[0]
    elif name is None and isinstance(table, str | os.PathLike):
        name = Path(table).stem
    if not isinstance(name, str) or not re.fullmatch(NAME, name) or len(name) > 100:
        raise ArgumentError(
            f"name={name!r:.120}; name the labels of {', '.join(columns)} with letters, digits and _ . + - to begin "
            "with a letter or digit, such as 'progress'"
        )
    return name


def _check_free(entry: SplitEntry, index: SplitIndex, name: str, columns: Sequence[str], *, overwrite: bool) -> None:
    """Raise ArgumentError if labels of the name exist, or a column is one of the index already."""
    where = f"dataset {index.dataset}, split {index.split}"
    own: set[str] = set()
    if (old := entry.labels.get(name)) is not None:
        if not overwrite:
            raise ArgumentError(
                f"{where}: labels {name!r} exist, with {', '.join(old.columns)}; replace them with --overwrite "
                "(overwrite=True), or give another --name"
            )
        own = set(old.columns)
    for column in columns:
        if not column.isprintable() or not column or column.startswith(_PREFIXES):
            raise ArgumentError(f"column {column!r:.80}: a label cannot have this name; rename it")
        kind = next((kind for kind in TABLE_KINDS if column in index.table(kind).columns), None)
        if (kind is not None and column not in own) or column in DERIVED:
            other = next((each for each, labels in entry.labels.items() if column in labels.columns), None)
            what = f"labels {other!r}" if other is not None else kind or "steps"
            raise ArgumentError(f"{where}: column {column!r:.80} exists, in {what}; rename it, or choose --columns")


def _read(
    given: GivenTable, chosen: Sequence[str], places: Places, *, folder: Path, stack: ExitStack
) -> list[LabelColumn]:
    """Read a table into columns, and note the rows that do not fit."""
    steps = int(places.starts[-1])
    found = [
        LabelColumn(given.schema.field(name), steps, folder=folder, stack=stack, where=given.where) for name in chosen
    ]
    masks = {name: mask for name in chosen if (mask := given.mask_of(name))}
    names = dict.fromkeys([*places.keys, *chosen, *masks.values()])
    for batch in given.batches(list(names)):
        for placed in places.locate(batch):
            # After a fault the rest is read to count all of them.
            for column in found if not places.faults.counts else ():
                values = batch.column(column.name)
                if column.name in masks:
                    has = pc.fill_null(batch.column(masks[column.name]), False)
                    values = values.take(pc.if_else(has, pa.array(range(len(values)), pa.int64()), None))
                column.put(values, placed)
    if not places.faults.counts:
        for column in found:
            _ = column.field
        if not places.seen.any():
            raise ArgumentError(f"{given.where}: has no rows")
    return found


def _labels(manifest: Manifest) -> dict[str, dict[str, TableEntry]]:
    return {split: dict(entry.labels) for split, entry in manifest.splits.items()}
