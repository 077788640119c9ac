"""The index of a split: its tables against the format, the manifest, each other, and the registry's vectors.

The rows of one shard are checked at a time, so memory does not grow with the split.
"""

from __future__ import annotations

from collections import Counter
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
    """Check the index of the split in ``folder``; never raises, whatever the files hold.

    If ``deep``, derived columns and statistics are computed again.
    """
    findings, entry, tables = Notes(folder.name), manifest.splits[folder.name], dict[TableKind, Table]()
    table_paths = {kind: folder / table_file(kind) for kind in TABLE_KINDS}
    for kind, table_path in table_paths.items():
        if table := _checked(table_path, kind, entry.index[kind], getattr(entry, kind), findings):
            tables[kind] = table
    for labels_name, labels in entry.labels.items():
        _checked(label_path(folder, labels_name, labels), None, labels, entry.steps, findings)
    try:
        shards, offsets = list_shards(folder, entry), record_offsets(manifest.layout, manifest.parameters)
        for shard in shards:
            _check_rows(tables, shard, offsets[-1] if offsets else None, findings)
        vectors = derived_vectors(read_vectors(manifest))
        if "steps" in tables and _check_vectors(tables["steps"], shards, vectors, deep, findings) and deep:
            computed = {name: _statistics(tables["steps"], name, vector) for name, vector in vectors.items()}
            for vector, sentence in differing_statistics(manifest.statistics.get(folder.name, {}), computed):
                findings.add_file(folder.parent / MANIFEST_NAME, f"statistics of {folder.name} {vector}: {sentence}")
    except FormatError as error:
        findings.add_file(folder.parent / MANIFEST_NAME, str(error))
    except Exception as error:
        sentence = f"tables could not be compared: {type(error).__name__}: {first_line(error)}"
        findings.add_file(table_paths["episodes"], sentence)
    return findings


def check_ids(folder: Path, splits: Mapping[str, SplitEntry]) -> Notes:
    """Check that no two episodes of a dataset have the same id; ``splits`` are those whose tables are sound."""
    findings, counts = Notes(), Counter[str]()
    for split, entry in splits.items():
        table_path = folder / split / table_file("episodes")
        table = open_table(table_path, "episodes", rows=entry.episodes)
        ids, num_known = table.take_texts("episode_id", np.arange(len(table))), len(counts)
        counts.update(ids)
        if num_repeated := len(ids) - (len(counts) - num_known):
            repeated = next(text_id for text_id in ids if counts[text_id] > 1)
            sentence = f"episode_id {repeated!r:.200} is of two episodes"
            sentence += "; labels, marks and lists cannot tell them apart"
            findings.add_file(table_path, sentence, check_name="ids", count=num_repeated)
    return findings


def _checked(
    table_path: Path, kind: TableKind | None, entry: TableEntry, num_rows: int, findings: Notes
) -> Table | None:
    """Return a table that can be compared with others, None if its file is not what the manifest says."""
    if findings.check_file(table_path, entry):
        try:
            return _open(table_path, kind, entry, num_rows, findings)
        except Exception as error:
            findings.add_file(table_path, fault(error, table_path))
    return None


def _open(table_path: Path, kind: TableKind | None, entry: TableEntry, num_rows: int, findings: Notes) -> Table:
    """Open a table, and report columns that differ from the manifest; raises FormatError or ArrowInvalid."""
    table, expected_hashes = open_table(table_path, kind, rows=num_rows), entry.columns
    # Follows every offset in the table.
    table.arrow().validate(full=True)
    for column in sorted({*table.columns, *expected_hashes}):
        if column not in expected_hashes:
            findings.add_file(table_path, f"column {column!r} is not in the manifest")
        elif column not in table.columns:
            findings.add_file(table_path, f"column {column!r} is only in the manifest")
        elif (actual_hash := hash_column(table.content, table.columns[column])) != expected_hashes[column]:
            sentence = f"column {column!r} has XXH3 {actual_hash}, expected {expected_hashes[column]}"
            findings.add_file(table_path, sentence)
    return table


def _check_vectors(
    table: Table, shards: Sequence[Shard], vectors: Mapping[DerivedName, Vector], deep: bool, findings: Notes
) -> bool:
    """Check that ``steps`` has the vectors of the registry entry, and if ``deep`` each value; return whether it has."""
    is_valid, table_path, raw_columns = True, Path(table.path), table.arrow()
    for column_name in DERIVED if len(table) else ():
        vector, column = vectors.get(column_name, ()), table.columns.get(column_name)
        num_values = None if isinstance(vector, Motion) else len(part_names(vector))
        actual_type = None if column is None else (column.dtype, column.width, column.validity)
        if actual_type != (("<f4", num_values, None) if vector else None):
            is_valid, description = False, "there is none"
            if column is not None:
                description = f"it has {column.width or 1} values of type {column.dtype} a row"
            expected = f"the manifest's registry entry says {num_values or 1} values of float32"
            findings.add_file(table_path, f"column {column_name}: {description}, {expected}")
            continue
        if not deep:
            continue
        problems = {part.path: find_fault(raw_columns.schema, part) for part in vector_inputs(vector)}
        for part_path, problem in problems.items():
            if problem:
                findings.add_file(table_path, f"{column_name} takes {part_path}, but {problem}")
        if any(problems.values()):
            is_valid = False
        elif vector:
            for shard in shards:
                is_valid &= _compare_rows(column_name, vector, _ShardRows(table, "steps", shard, findings), raw_columns)
    return is_valid


def _statistics(table: Table, column: DerivedName, vector: Vector) -> Statistics:
    """Return the statistics of a derived column, read in another way than the one that wrote the manifest's."""
    names = part_names(vector)
    values, episodes = table.array(column).reshape(len(table), len(names)), table.array("episode")
    figures = [describe_values(dimension.copy()) for dimension in values.T]
    return Statistics(
        names=names,
        count=len(table),
        nonfinite_episodes=len(np.unique(episodes[~np.isfinite(values).all(axis=1)])) if column in VECTORS else 0,
        **{name: tuple(dimension[name] for dimension in figures) for name in figures[0]},
    )


def _compare_rows(column: str, vector: Vector, shard_rows: _ShardRows, raw_columns: pa.Table) -> bool:
    """Compare a derived column of a shard with the raw columns; return whether it is the same."""
    with np.errstate(over="ignore", invalid="ignore"):
        expected = derive_vector(raw_columns[shard_rows.shard.rows("steps")], vector)
    dimension_names = part_names(vector)
    actual = shard_rows[column].reshape(len(expected), len(dimension_names))
    # The last bit of an angle or a norm depends on the CPU.
    tolerance = 0 if isinstance(vector, tuple) else _TOLERANCE
    is_wrong = ~np.isclose(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True)

    def describe(row_number: int) -> str:
        dimension = int(is_wrong[row_number].argmax())
        stored_value, derived_value = actual[row_number, dimension], expected[row_number, dimension]
        return f"{column} {dimension_names[dimension]} is {stored_value}, the raw columns give {derived_value}"

    return shard_rows.check(column, is_wrong.any(axis=1), describe)


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

    def check(self, check_name: str, is_wrong: np.ndarray, describe: Callable[[int], str]) -> bool:
        """Check that no row is wrong, bool [rows]; ``describe`` takes a row, counted from the first of the shard."""
        wrong_rows = np.flatnonzero(is_wrong)
        if len(wrong_rows):
            first_row = int(wrong_rows[0])
            location = f"row {self.numbers[first_row]:,} (row {first_row:,} of {self.shard.entry.name})"
            path, sentence = Path(self._table.path), f"{location}: {describe(first_row)}"
            self._findings.add_file(path, sentence, check_name=check_name, count=len(wrong_rows))
        return not len(wrong_rows)

    def compare(self, column: str, expected: np.ndarray | int | str) -> bool:
        """Check that a column has the expected values."""
        actual = self[column]
        values = np.broadcast_to(np.asarray(expected, actual.dtype), actual.shape)

        def describe(row: int) -> str:
            return f"{column} is {_show(actual[row])}, expected {_show(values[row])}"

        return self.check(column, actual != values, describe)

    def check_order(self, column: str, groups: np.ndarray) -> bool:
        """Check that a column rises within each group of rows."""
        values = self[column]
        is_wrong = np.diff(values, prepend=values[:1] - 1) <= 0
        is_wrong[1:] &= np.diff(groups) == 0

        def describe(row: int) -> str:
            return f"{column} is {values[row]:,} after {values[row - 1]:,}, expected more"

        return self.check(f"order of {column}", is_wrong, describe)

    def check_count(self, subject: str, actual: int | np.integer, recorded: int) -> bool:
        """Check a count of the shard against the manifest."""
        if actual != recorded:
            sentence = f"has {actual:,} {subject} in {self.shard.entry.name}, the manifest says {recorded:,}"
            self._findings.add_file(Path(self._table.path), sentence, check_name=subject)
        return bool(actual == recorded)


def _check_rows(tables: Mapping[TableKind, Table], shard: Shard, offset: int | None, findings: Notes) -> None:
    """Check that the rows of a shard agree with each other and with the counts in the manifest.

    ``tables`` are those that can be read; without ``rows``, nothing can be compared. ``offset`` is that of all
    records in steps, None if it is unknown: then records are not checked.
    """
    rows_by_table = {kind: _ShardRows(table, kind, shard, findings) for kind, table in tables.items()}
    rows, step_rows = rows_by_table.get("episodes"), rows_by_table.get("steps")
    # Steps and records cannot be assigned to episodes of wrong lengths.
    if rows is None or not _check_episodes(rows, offset):
        return
    if step_rows is not None:
        step_rows.compare("episode", np.repeat(rows["episode"], rows["num_steps"]))
        step_rows.compare("step", step_rows.numbers - np.repeat(rows["first_steps_row"], rows["num_steps"]))
    if "records" in rows_by_table and offset is not None:
        _check_records(rows_by_table["records"], rows, offset)


def _check_episodes(rows: _ShardRows, offset: int | None) -> bool:
    """Check the episodes of a shard; return whether their steps and records are contiguous and of the right count."""
    shard, entry = rows.shard, rows.shard.entry
    num_steps, num_records, status, position = (
        rows[column] for column in ("num_steps", "num_records", "status", "source_position")
    )
    possible_records = num_records
    if offset is not None:
        possible_records = np.maximum(num_steps - offset, 0) * max(1, len(entry.camera_sizes))
    possible_records = np.where(np.isin(status, _NO_RECORDS), 0, possible_records)
    are_contiguous = [
        rows.compare("episode", rows.numbers),
        rows.compare("shard", shard.number),
        rows.compare("num_steps", np.where(np.isin(status, _NO_STEPS), 0, np.maximum(num_steps, 0))),
        rows.compare("first_steps_row", shard.first["steps"] + np.cumsum(num_steps) - num_steps),
        rows.compare("num_records", np.clip(num_records, 0, np.maximum(possible_records, 0))),
        rows.compare("first_record", shard.first["records"] + np.cumsum(num_records) - num_records),
        rows.check_count("steps", num_steps.sum(), entry.steps),
        rows.check_count("records", num_records.sum(), entry.records),
    ]
    rows.compare("status", np.where(np.isin(status, _STATUSES), status, " or ".join(_STATUSES)))
    source_files = rows["source_file"]
    rows.check_order("source_position", np.cumsum(source_files != np.roll(source_files, 1)))
    episode_ids = [episode_id(*source) for source in zip(source_files, position.tolist(), strict=True)]
    rows.compare("episode_id", np.array(episode_ids, object))
    rows.check_count("episodes with records", np.count_nonzero(num_records > 0), entry.paired_episodes)
    for reason in _NO_RECORDS:
        num_found = np.count_nonzero(status == reason)
        rows.check_count(f"episodes of status {reason}", num_found, entry.left_out.get(reason, 0))
    if offset is not None:
        left_out = entry.left_out.get("pair_of_corrupt_frame", 0)
        rows.check_count("pairs without a record", (possible_records - num_records).sum(), left_out)
    return all(are_contiguous)


def _check_records(record_rows: _ShardRows, rows: _ShardRows, offset: int) -> None:
    """Check that the records of a shard are of its episodes, in order, and have locations in the ArrayRecord file."""
    entry, record_steps, record_counts = record_rows.shard.entry, record_rows["step"], rows["num_records"]
    episode_lengths = np.repeat(rows["num_steps"], record_counts)
    camera_numbers = np.zeros_like(record_steps)
    if entry.camera_sizes:
        record = record_rows.numbers - np.repeat(rows["first_record"], record_counts)
        camera_numbers, ordered_steps = np.divmod(record, np.maximum(episode_lengths, 1))
        record_rows.compare("step", ordered_steps)
    else:
        record_rows.check_order("step", record_rows["episode"])

        def describe_step(row: int) -> str:
            subject = f"step {record_steps[row]:,} with offset {offset}"
            return f"{subject} is outside its episode of {episode_lengths[row]:,} steps"

        record_rows.check("outside", (record_steps < 0) | (record_steps + offset >= episode_lengths), describe_step)
    record_rows.compare("shard", record_rows.shard.number)
    record_rows.compare("episode", np.repeat(rows["episode"], record_counts))
    record_rows.compare("camera", camera_numbers)
    record_rows.compare("offset", offset)
    record_rows.compare("steps_row", np.repeat(rows["first_steps_row"], record_counts) + record_steps)
    offsets, num_bytes, file_bytes = record_rows["position"], record_rows["num_bytes"], entry.file.bytes

    def describe(row: int) -> str:
        return f"{num_bytes[row]:,} bytes at {offsets[row]:,} are not in the shard's file of {file_bytes:,} bytes"

    record_rows.check("location", (offsets < 0) | (num_bytes <= 0) | (offsets > file_bytes - num_bytes), describe)


def _show(shown_value: object) -> str:
    return f"{shown_value!r:.200}" if isinstance(shown_value, str) else f"{shown_value:,}"
