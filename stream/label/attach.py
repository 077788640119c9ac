"""Labels of a converted dataset: attached, replaced, removed and listed."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain, pairwise
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
from stream.label.step_positions import StepPositions
from stream.label.table import LabelTable, open_label_table
from stream.storage.files import lock_folder, make_folder, rename_durably
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
    or all steps by none of these. A table with LeRobot's ``index`` needs no other key. Rows may be in any order.

    A label is a number, true or false, a text, or a list of numbers of one length. A label is missing at steps that the
    table does not name, and where its column ``<name>_mask`` of booleans is False. There the mask of the column is
    False, and the value is NaN, 0 for a whole number, False, or an empty text.

    Args:
        root: Local folder that ``convert.run`` wrote, or ``pairstream fetch`` copied.
        dataset: Name of a dataset, or ``name:version``.
        table: Parquet, CSV or Arrow file, a folder of such files, a table of pyarrow or pandas, or a mapping of names
            to columns.
        name: Name of the labels, for replacing or removing them; by default the name of their only column, or of the
            file.
        split: Split of the table; by default all splits, which requires keys that identify episodes of all splits.
        columns: Columns to attach; by default all columns but keys and masks (``<name>_mask``).
        overwrite: Replace labels of the same name.

    Returns:
        ``dataset``, ``version``, ``name``, and as ``splits`` the columns of each split, see ``list_labels``.

    Raises:
        ArgumentError: An argument is wrong, or the table does not match the dataset; the message has the counts and
            the first five faults. Nothing was written.
        stream.base.errors.FormatError: The dataset is damaged.
        OSError: The folder cannot be written.
    """
    if columns is not None and (isinstance(columns, str) or not all(isinstance(column, str) for column in columns)):
        raise ArgumentError(f"columns={columns!r:.100}; expected a list of names")
    label_table = open_label_table(table)
    label_columns = label_table.chosen(columns)
    name = _check_name(name, label_columns, table)
    with _changing(root, dataset) as open_dataset, ExitStack() as stack:
        splits = _open_splits(open_dataset, split)
        for split_index in splits:
            split_entry = open_dataset.manifest.splits[split_index.split]
            _check_free(split_entry, split_index, name, label_columns, overwrite=overwrite)
        label_folders = {split_index.split: Path(split_index.folder, LABELS) for split_index in splits}
        for label_folder in label_folders.values():
            make_folder(label_folder)
        positions = StepPositions(splits, open_dataset, label_table)
        folder = label_folders[splits[0].split]
        filled_columns = _read(label_table, label_columns, positions, folder=folder, stack=stack)
        positions.faults.raise_error(label_table.name, positions.hint)
        has_value = {column.name: column.present(positions.seen) for column in filled_columns}
        labels = _labels(open_dataset.manifest)
        for split_name, (start, stop) in zip(label_folders, pairwise(positions.starts.tolist()), strict=True):
            temporary = label_folders[split_name] / f".{name}.{os.getpid()}.new"
            table_entry = write_table(temporary, None, blocks(filled_columns, start, stop, has_value))
            rename_durably(temporary, temporary.with_name(waiting_label(name, table_entry.sha256)))
            labels[split_name][name] = table_entry
        commit_labels(open_dataset.folder, labels)
        listed = _listed(_catalog(root).open(f"{open_dataset.folder.parent.name}:{open_dataset.version}"))
        described_splits = {split_name: listed[split_name][name] for split_name in label_folders}
    return {"dataset": open_dataset.name, "version": open_dataset.version, "name": name, "splits": described_splits}


@with_known_names
def remove_labels(root: str | Path, dataset: str, name: str, *, split: str | None = None) -> dict[str, Any]:
    """Remove labels, by their name or by that of their only column, from a split, by default from all splits.

    Returns:
        ``dataset``, ``version``, ``name``, and as ``splits`` the splits that had the labels.

    Raises:
        ArgumentError: There are no such labels.
        OSError: The folder cannot be written.
    """
    with _changing(root, dataset) as open_dataset:
        labels = _labels(open_dataset.manifest)
        if split is not None and split not in labels:
            raise _no_split(open_dataset, split)
        searched_splits = [split] if split is not None else list(labels)
        entries = list(chain.from_iterable(labels[split_name].items() for split_name in searched_splits))
        available = {labels_name for labels_name, _ in entries}
        single_column = {labels_name for labels_name, entry in entries if list(entry.columns) == [name]}
        if name not in available:
            if len(single_column) != 1:
                hint = closest(name, available, noun="labels")
                raise ArgumentError(f"dataset {open_dataset.name}: no labels {name!r:.80}; {hint}")
            (name,) = single_column
        changed_splits = [split_name for split_name in searched_splits if name in labels[split_name]]
        for split_name in changed_splits:
            folder, table_entry = open_dataset.folder / split_name / LABELS, labels[split_name].pop(name)
            with contextlib.suppress(FileNotFoundError):
                rename_durably(folder / label_file(name), folder / waiting_label(name, table_entry.sha256))
        commit_labels(open_dataset.folder, labels)
    return {"dataset": open_dataset.name, "version": open_dataset.version, "name": name, "splits": changed_splits}


def list_labels(root: str | Path, dataset: str) -> Listed:
    """Return the labels of a dataset: by split and name, the ``type`` of each column and its ``missing`` steps.

    Raises ArgumentError if there is no such dataset, and FormatError for a table of labels that is missing or damaged.
    """
    return _listed(_catalog(root).open(dataset))


def _listed(dataset: Dataset) -> Listed:
    listed_labels: Listed = {}
    for split, split_entry in dataset.manifest.splits.items():
        if not split_entry.labels or not (dataset.folder / split / table_file("steps")).exists():
            continue
        listed_labels[split] = {}
        tables = open_labels(dataset.folder / split, split_entry)
        for labels_name, arrow_table in zip(split_entry.labels, (table.arrow() for table in tables), strict=True):
            columns = zip(arrow_table.schema, arrow_table.columns, strict=True)
            listed_labels[split][labels_name] = {
                field.name: {"type": _type(field), "missing": column.null_count} for field, column in columns
            }
    return listed_labels


def _type(field: Any) -> str:
    arrow_type = field.type
    if arrow_type == TEXT:
        return "text"
    is_list = hasattr(arrow_type, "list_size")
    return f"{number_type(arrow_type.value_type)}[{arrow_type.list_size}]" if is_list else str(number_type(arrow_type))


def _catalog(root: str | Path) -> Catalog:
    if is_remote(root):
        remedy = "bring it here with `pairstream fetch`, attach them, and copy the dataset back"
        raise ArgumentError(f"{root}: labels are attached to local roots; {remedy}")
    return Catalog(root)


@contextlib.contextmanager
def _changing(root: str | Path, dataset: str) -> Iterator[Dataset]:
    """Open a dataset while no other process changes its labels; file names left by a killed process are corrected."""
    folder = _catalog(root).open(dataset).folder
    with lock_folder(folder, doing="changes"):
        # Another process may have changed it before the lock was free.
        open_dataset = _catalog(root).open(dataset)
        try:
            settle_labels(folder, open_dataset.manifest)
            yield open_dataset
        finally:
            settle_labels(folder, read_manifest(folder))


def _open_splits(dataset: Dataset, split: str | None) -> list[SplitIndex]:
    """Return the splits of a table; of a dataset that was fetched in part, the fetched splits."""
    splits = dataset.manifest.splits
    if split is not None and split not in splits:
        raise _no_split(dataset, split)
    local_splits = [split_name for split_name in splits if (dataset.folder / split_name / table_file("steps")).exists()]
    if split is not None and split not in local_splits:
        raise ArgumentError(f"dataset {dataset.name}: split {split!r} was not fetched")
    return [open_index(dataset, split_name) for split_name in ([split] if split is not None else local_splits)]


def _no_split(dataset: Dataset, split: str) -> ArgumentError:
    hint = closest(split, dataset.manifest.splits, noun="splits")
    return ArgumentError(f"dataset {dataset.name}: no split {split!r:.80}; {hint}")


def _check_name(name: str | None, columns: Sequence[str], table: Any) -> str:
    """Return the name of the labels."""
    if name is None and len(columns) == 1:
        name = columns[0]
    elif name is None and isinstance(table, str | os.PathLike):
        name = Path(table).stem
    if not isinstance(name, str) or not re.fullmatch(NAME, name) or len(name) > 100:
        expected = "with letters, digits and _ . + - to begin with a letter or digit, such as 'progress'"
        raise ArgumentError(f"name={name!r:.120}; name the labels of {', '.join(columns)} {expected}")
    return name


def _check_free(
    split_entry: SplitEntry, split_index: SplitIndex, name: str, columns: Sequence[str], *, overwrite: bool
) -> None:
    """Raise ArgumentError if labels of the name exist, or a column is one of the index already."""
    context = f"dataset {split_index.dataset}, split {split_index.split}"
    replaced_entry = split_entry.labels.get(name)
    replaced_columns = replaced_entry.columns if replaced_entry is not None else {}
    if replaced_entry is not None and not overwrite:
        remedy = "replace them with --overwrite (overwrite=True), or give another --name"
        raise ArgumentError(f"{context}: labels {name!r} exist, with {', '.join(replaced_columns)}; {remedy}")
    for column in columns:
        if not column.isprintable() or not column or column.startswith(_PREFIXES):
            raise ArgumentError(f"column {column!r:.80}: a label cannot have this name; rename it")
        owner: str | None = next((kind for kind in TABLE_KINDS if column in split_index.table(kind).columns), None)
        if (owner is not None and column not in replaced_columns) or column in DERIVED:
            for labels_name, table_entry in split_entry.labels.items():
                owner = f"labels {labels_name!r}" if column in table_entry.columns else owner
            owner = owner or "steps"
            raise ArgumentError(f"{context}: column {column!r:.80} exists, in {owner}; rename it, or choose --columns")


def _read(
    table: LabelTable, names: Sequence[str], positions: StepPositions, *, folder: Path, stack: ExitStack
) -> list[LabelColumn]:
    """Read a table into columns, and note the rows that do not match the dataset."""
    create = partial(LabelColumn, num_steps=int(positions.starts[-1]), folder=folder, stack=stack, context=table.name)
    filled_columns = [create(table.schema.field(name)) for name in names]
    masks = {name: mask_name for name in names if (mask_name := table.mask_of(name))}
    for batch in table.batches(list(dict.fromkeys([*positions.keys, *names, *masks.values()]))):
        for placed_rows in positions.locate(batch):
            # After a fault the remaining rows are only read to count all faults.
            for column in filled_columns if not positions.faults.counts else ():
                values = batch.column(column.name)
                if column.name in masks:
                    has_value = pc.fill_null(batch.column(masks[column.name]), False)
                    values = values.take(pc.if_else(has_value, pa.array(range(len(values)), pa.int64()), None))
                column.put(values, placed_rows)
    if not positions.faults.counts:
        for column in filled_columns:
            _ = column.field
        if not positions.seen.any():
            raise ArgumentError(f"{table.name}: has no rows")
    return filled_columns


def _labels(manifest: Manifest) -> dict[str, dict[str, TableEntry]]:
    return {split: dict(split_entry.labels) for split, split_entry in manifest.splits.items()}
