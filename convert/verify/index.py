"""The index of a split: its tables against the format, the manifest, each other, and the registry's vectors.

The rows of one shard are checked at a time, so memory does not grow with the split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from convert.findings import Notes
from convert.index.derived import derive_vector, find_fault, part_names, read_vectors, vector_inputs
from convert.index.shards import Shard, list_shards
from convert.index.statistics import differing_statistics
from convert.registry.dataset import Motion, Vector, derived_vectors
from convert.report import fault, first_line
from convert.shard.pairs import record_offsets
from convert.source.episode import episode_id
from stream.base.errors import FormatError
from stream.format.index import label_path
from stream.format.manifest import Manifest, SplitEntry, Statistics, TableEntry
from stream.format.names import DERIVED, MANIFEST_NAME, TABLE_KINDS, VECTORS, DerivedName, TableKind, table_file
from stream.format.statistics import describe_values
from stream.format.table import Table, hash_column, open_table

_TOLERANCE = 1e-6
_NO_STEPS = ("empty", "unreadable", "malformed", "missing_frames", "unmatched_frames")
_NO_RECORDS = (*_NO_STEPS, "too_short", "missing_feature")
_STATUSES = ("ok", *_NO_RECORDS)


def check_index(folder: Path, manifest: Manifest, *, deep: bool) -> Notes:
    """Check the index of one split; never raises, whatever the files hold.

    Args:
        folder: Folder of the split, ``ROOT/<dataset>/<version>/<split>``.
        manifest: Manifest of the dataset.
        deep: Compute derived columns and statistics again.
    """
    findings, entry, tables = Notes(folder.name), manifest.splits[folder.name], dict[TableKind, Table]()
    paths = {kind: folder / table_file(kind) for kind in TABLE_KINDS}
    for kind, path in paths.items():
        if table := _checked(path, kind, entry.index[kind], getattr(entry, kind), findings):
            tables[kind] = table
    for name, labels in entry.labels.items():
        _checked(label_path(folder, name, labels), None, labels, entry.steps, findings)
    try:
        shards, offsets = list_shards(folder, entry), record_offsets(manifest.layout, manifest.parameters)
        for shard in shards:
            _check_rows(tables, shard, offsets[-1] if offsets else None, findings)
        vectors = derived_vectors(read_vectors(manifest))
        if "steps" in tables and _check_vectors(tables["steps"], shards, vectors, deep, findings) and deep:
            computed = {name: _statistics(tables["steps"], name, vector) for name, vector in vectors.items()}
            for vector, text in differing_statistics(manifest.statistics.get(folder.name, {}), computed):
                findings.add_file(folder.parent / MANIFEST_NAME, f"statistics of {folder.name} {vector}: {text}")
    except FormatError as error:
        findings.add_file(folder.parent / MANIFEST_NAME, str(error))
    except Exception as error:
        findings.add_file(
            paths["episodes"], f"tables could not be compared: {type(error).__name__}: {first_line(error)}"
        )
    return findings


def check_ids(folder: Path, splits: Mapping[str, SplitEntry]) -> Notes:
    """Check that no two episodes of a dataset have the same id; ``splits`` are those whose tables are sound."""
    findings, seen = Notes(), set[str]()
    for split, entry in splits.items():
        path = folder / split / table_file("episodes")
        table = open_table(path, "episodes", rows=entry.episodes)
        repeated = []
        for name in table.take_texts("episode_id", np.arange(len(table))):
            if name in seen:
                repeated.append(name)
            seen.add(name)
        if repeated:
            text = f"episode_id {repeated[0]!r:.200} is of two episodes; labels, marks and lists cannot tell them apart"
            findings.add_file(path, text, check_name="ids", count=len(repeated))
    return findings


def _checked(path: Path, kind: TableKind | None, entry: TableEntry, rows: int, findings: Notes) -> Table | None:
    """Return a table that can be compared with others, None if its file is not what the manifest says."""
    if findings.check_file(path, entry):
        try:
            return _open(path, kind, entry, rows, findings)
        except Exception as error:
            findings.add_file(path, fault(error, path))
    return None


def _open(path: Path, kind: TableKind | None, entry: TableEntry, rows: int, findings: Notes) -> Table:
    """Open a table, and report columns that differ from the manifest; raises FormatError or ArrowInvalid."""
    table, expected = open_table(path, kind, rows=rows), entry.columns
    # Follows every offset in the table.
    table.arrow().validate(full=True)
    for name in sorted({*table.columns, *expected}):
        if name not in expected:
            findings.add_file(path, f"column {name!r} is not in the manifest")
        elif name not in table.columns:
            findings.add_file(path, f"column {name!r} is only in the manifest")
        elif (found := hash_column(table.content, table.columns[name])) != expected[name]:
            findings.add_file(path, f"column {name!r} has XXH3 {found}, expected {expected[name]}")
    return table


def _check_vectors(
    table: Table, shards: Sequence[Shard], vectors: Mapping[DerivedName, Vector], deep: bool, findings: Notes
) -> bool:
    """Check that ``steps`` has the vectors of the registry entry, and if ``deep`` each value; return whether it has."""
    sound, path, raw = True, Path(table.path), table.arrow()
    for name in DERIVED if len(table) else ():
        vector, column = vectors.get(name, ()), table.columns.get(name)
        size = None if isinstance(vector, Motion) else len(part_names(vector))
        found = None if column is None else (column.dtype, column.width, column.validity)
        if found != (("<f4", size, None) if vector else None):
            sound, shown = (
                False,
                f"it has {found[1] or 1} values of type {found[0]} a row" if found else "there is none",
            )
            findings.add_file(
                path, f"column {name}: {shown}, the manifest's registry entry says {size or 1} values of float32"
            )
        elif deep and (
            faults := {part.path: text for part in vector_inputs(vector) if (text := find_fault(raw.schema, part))}
        ):
            sound = False
            for part, text in faults.items():
                findings.add_file(path, f"{name} takes {part}, but {text}")
        elif deep and vector:
            for shard in shards:
                sound &= _compare_rows(name, vector, _ShardRows(table, "steps", shard, findings), raw)
    return sound


def _statistics(table: Table, name: DerivedName, vector: Vector) -> Statistics:
    """Return the statistics of a derived column, read in another way than the one that wrote the manifest's."""
    names = part_names(vector)
    rows, owners = table.array(name).reshape(len(table), len(names)), table.array("episode")
    dims = [describe_values(values.copy()) for values in rows.T]
    return Statistics(
        names=names,
        count=len(table),
        nonfinite_episodes=len(np.unique(owners[~np.isfinite(rows).all(axis=1)])) if name in VECTORS else 0,
        **{key: tuple(dim[key] for dim in dims) for key in dims[0]},
    )


def _compare_rows(name: str, vector: Vector, rows: _ShardRows, raw: pa.Table) -> bool:
    """Compare a derived column of a shard with the raw columns; return whether it is the same."""
    with np.errstate(over="ignore", invalid="ignore"):
        expected = derive_vector(raw[rows.shard.rows("steps")], vector)
    names = part_names(vector)
    found = rows[name].reshape(len(expected), len(names))
    # The last bit of an angle or a norm depends on the CPU.
    tolerance = 0 if isinstance(vector, tuple) else _TOLERANCE
    wrong = ~np.isclose(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)

    def describe(row: int) -> str:
        dim = int(wrong[row].argmax())
        return f"{name} {names[dim]} is {found[row, dim]}, the raw columns give {expected[row, dim]}"

    return rows.check(name, wrong.any(axis=1), describe)


class _ShardRows:
    """The rows of a shard in a table, and the findings about them.

    Of each check of a table, the findings have the first wrong row and the count of the wrong rows of all shards.
    Checks return whether nothing is wrong.
    """

    def __init__(self, table: Table, kind: TableKind, shard: Shard, findings: Notes) -> None:
        self.shard = shard
        self.numbers = np.arange(shard.rows(kind).start, shard.rows(kind).stop)
        """Numbers of the rows in the table, int64 [rows]."""
        self._table, self._rows, self._findings = table, shard.rows(kind), findings

    def __getitem__(self, column: str) -> np.ndarray:
        """Return a column: whole numbers as int64 and texts as objects, [rows], or float32 [rows] or [rows, width]."""
        if self._table.columns[column].texts is not None:
            return np.array(self._table.arrow()[column][self._rows].to_pylist(), object)
        values = self._table.array(column)[self._rows]
        # Signed and wide, so that differences and sums of damaged numbers do not overflow.
        return values.astype(np.int64) if values.dtype.kind in "iu" else values

    def check(self, name: str, wrong: np.ndarray, text: Callable[[int], str]) -> bool:
        """Check that no row is wrong, bool [rows]; ``text`` describes a row, counted from the first of the shard."""
        rows = np.flatnonzero(wrong)
        if len(rows):
            row = int(rows[0])
            place = f"row {self.numbers[row]:,} (row {row:,} of {self.shard.entry.name})"
            self._findings.add_file(Path(self._table.path), f"{place}: {text(row)}", check_name=name, count=len(rows))
        return not len(rows)

    def compare(self, column: str, expected: np.ndarray | int | str) -> bool:
        """Check that a column has the expected values."""
        found = self[column]
        values = np.broadcast_to(np.asarray(expected, found.dtype), found.shape)
        return self.check(
            column, found != values, lambda row: f"{column} is {_show(found[row])}, expected {_show(values[row])}"
        )

    def check_order(self, column: str, groups: np.ndarray) -> bool:
        """Check that a column rises within each group of rows."""
        values = self[column]
        wrong = np.diff(values, prepend=values[:1] - 1) <= 0
        wrong[1:] &= np.diff(groups) == 0
        return self.check(
            f"order of {column}",
            wrong,
            lambda row: f"{column} is {values[row]:,} after {values[row - 1]:,}, expected more",
        )

    def check_count(self, what: str, found: int | np.integer, said: int) -> bool:
        """Check a count of the shard against the manifest."""
        if found != said:
            text = f"has {found:,} {what} in {self.shard.entry.name}, the manifest says {said:,}"
            self._findings.add_file(Path(self._table.path), text, check_name=what)
        return bool(found == said)


def _check_rows(tables: Mapping[TableKind, Table], shard: Shard, offset: int | None, findings: Notes) -> None:
    """Check that the rows of a shard agree with each other and with the counts in the manifest.

    ``tables`` are those that can be read; without ``episodes``, nothing can be compared. ``offset`` is that of all
    records in steps, None if it is unknown: then records are not checked.
    """
    rows = {kind: _ShardRows(table, kind, shard, findings) for kind, table in tables.items()}
    episodes, steps = rows.get("episodes"), rows.get("steps")
    # Steps and records cannot be assigned to episodes of wrong lengths.
    if episodes is None or not _check_episodes(episodes, offset):
        return
    if steps is not None:
        steps.compare("episode", np.repeat(episodes["episode"], episodes["num_steps"]))
        steps.compare("step", steps.numbers - np.repeat(episodes["first_steps_row"], episodes["num_steps"]))
    if "records" in rows and offset is not None:
        _check_records(rows["records"], episodes, offset)


def _check_episodes(rows: _ShardRows, offset: int | None) -> bool:
    """Check the episodes of a shard; return whether their steps and records are contiguous and of the right count."""
    shard, entry = rows.shard, rows.shard.entry
    steps, records, status, position = map(rows.__getitem__, ("num_steps", "num_records", "status", "source_position"))
    possible = records if offset is None else np.maximum(steps - offset, 0) * max(1, len(entry.camera_sizes))
    possible = np.where(np.isin(status, _NO_RECORDS), 0, possible)
    contiguous = [
        rows.compare("episode", rows.numbers),
        rows.compare("shard", shard.number),
        rows.compare("num_steps", np.where(np.isin(status, _NO_STEPS), 0, np.maximum(steps, 0))),
        rows.compare("first_steps_row", shard.first["steps"] + np.cumsum(steps) - steps),
        rows.compare("num_records", np.clip(records, 0, np.maximum(possible, 0))),
        rows.compare("first_record", shard.first["records"] + np.cumsum(records) - records),
        rows.check_count("steps", steps.sum(), entry.steps),
        rows.check_count("records", records.sum(), entry.records),
    ]
    rows.compare("status", np.where(np.isin(status, _STATUSES), status, " or ".join(_STATUSES)))
    files = rows["source_file"]
    rows.check_order("source_position", np.cumsum(files != np.roll(files, 1)))
    ids = [episode_id(*source) for source in zip(files, position.tolist(), strict=True)]
    rows.compare("episode_id", np.array(ids, object))
    rows.check_count("episodes with records", np.count_nonzero(records > 0), entry.paired_episodes)
    for reason in _NO_RECORDS:
        found = np.count_nonzero(status == reason)
        rows.check_count(f"episodes of status {reason}", found, entry.left_out.get(reason, 0))
    if offset is not None:
        left_out = entry.left_out.get("pair_of_corrupt_frame", 0)
        rows.check_count("pairs without a record", (possible - records).sum(), left_out)
    return all(contiguous)


def _check_records(rows: _ShardRows, episodes: _ShardRows, offset: int) -> None:
    """Check that the records of a shard are of its episodes, in order, and have locations in the ArrayRecord file."""
    entry, step, counts = rows.shard.entry, rows["step"], episodes["num_records"]
    length = np.repeat(episodes["num_steps"], counts)
    camera = np.zeros_like(step)
    if entry.camera_sizes:
        record = rows.numbers - np.repeat(episodes["first_record"], counts)
        camera, ordered = np.divmod(record, np.maximum(length, 1))
        rows.compare("step", ordered)
    else:
        rows.check_order("step", rows["episode"])
        rows.check(
            "outside",
            (step < 0) | (step + offset >= length),
            lambda row: f"step {step[row]:,} with offset {offset} is outside its episode of {length[row]:,} steps",
        )
    rows.compare("shard", rows.shard.number)
    rows.compare("episode", np.repeat(episodes["episode"], counts))
    rows.compare("camera", camera)
    rows.compare("offset", offset)
    rows.compare("steps_row", np.repeat(episodes["first_steps_row"], counts) + step)
    position, num_bytes, size = rows["position"], rows["num_bytes"], entry.file.bytes
    rows.check(
        "location",
        (position < 0) | (num_bytes <= 0) | (position > size - num_bytes),
        lambda row: f"{num_bytes[row]:,} bytes at {position[row]:,} are not in the shard's file of {size:,} bytes",
    )


def _show(value: object) -> str:
    return f"{value!r:.200}" if isinstance(value, str) else f"{value:,}"
