"""Tests of the tables of an index against Arrow's own reader, and of the errors of damaged tables."""

from __future__ import annotations

import errno
import gc
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from stream.base.errors import FormatError
from stream.format.schema import STEP_FIELDS, TEXT
from stream.format.table import Table, describe_table, hash_column, map_file, open_table
from tests.fixtures.datasets.arrow_part import write_part
from tests.fixtures.faults.memory_limit import memory_limit
from tests.fixtures.parameters import long_but

INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
NUMBERS = (*INTEGERS, "uint8", "uint16", "uint32", "uint64", "halffloat", "float", "double", "bool")
TEXTS = ("texts", "repeated texts")
WORDS = ("", "a", "open the drawer", "é☕", "z" * 300)


def column(random: np.random.Generator, kind: str, width: int | None, rows: int, *, absent: bool) -> pa.Array:
    """Return a column of random values, some of them missing if ``absent``."""
    mask = pa.array(random.random(rows) < 0.3, pa.bool_()) if absent else None
    if kind in TEXTS:
        texts = pa.array([WORDS[i] for i in random.integers(0, len(WORDS), rows)], pa.large_string())
        texts = texts if mask is None else pa.compute.if_else(mask, None, texts)
        return texts.dictionary_encode() if kind == "repeated texts" else texts
    count = rows * (width or 1)
    if kind == "bool":
        values = pa.array(random.random(count) < 0.5)
    else:
        dtype = np.dtype({"halffloat": "float16", "float": "float32", "double": "float64"}.get(kind, kind))
        # Any bytes, so that a number taken from a wrong location shows.
        values = pa.array(np.nan_to_num(np.frombuffer(random.bytes(count * dtype.itemsize), dtype)))
    if width is not None:
        return pa.FixedSizeListArray.from_arrays(values, width, mask=mask)
    return values if mask is None else pa.compute.if_else(mask, None, values)


def step_table(rows: int, **columns: pa.Array) -> pa.Table:
    """Return a table of steps with further columns."""
    numbers = pa.array(np.arange(rows), pa.int32())
    languages = pa.array([f"do {number % 3}" for number in range(rows)], pa.large_string()).dictionary_encode()
    fields = [pa.field(name, array.type) for name, array in columns.items()]
    arrays = [numbers, numbers, languages, *columns.values()]
    return pa.Table.from_arrays(arrays, schema=pa.schema([*STEP_FIELDS, *fields]))


def written(folder: Path, table: pa.Table) -> Path:
    path = folder / "steps.arrow"
    # The file of an earlier example may be mapped.
    path.unlink(missing_ok=True)
    write_part(path, table)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("table")


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """Write a table with a column of each sort; some rows have no value."""
    random = np.random.default_rng(0)
    kinds: list[tuple[str, int | None]] = [("float", 2), ("bool", 3), ("texts", None), ("repeated texts", None)]
    columns = {kind: column(random, kind, width, 9, absent=True) for kind, width in kinds}
    return written(tmp_path, step_table(9, **columns, list=pa.array([[1]] * 9, pa.large_list(pa.int16()))))


KINDS = st.one_of(
    st.tuples(st.sampled_from(NUMBERS), st.one_of(st.none(), st.integers(1, 9))),
    st.tuples(st.sampled_from(TEXTS), st.none()),
)


@given(st.lists(st.tuples(KINDS, st.booleans()), max_size=6), st.integers(0, 40), st.integers(0, 1 << 32))
def test_columns_are_those_that_arrow_reads(
    folder: Path, kinds: list[tuple[tuple[str, int | None], bool]], rows: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    columns = {
        f"column {number}": column(random, kind, width, rows, absent=absent)
        for number, ((kind, width), absent) in enumerate(kinds)
    }
    path = written(folder, step_table(rows, **columns))
    table, expected = open_table(path, "steps"), pa.ipc.open_file(path).read_all()
    assert len(table) == rows
    assert table.arrow().equals(expected)
    assert list(table.columns) == expected.column_names
    chosen = random.integers(0, rows, 20) if rows else np.zeros(0, np.int64)
    for name in table.columns:
        check_column(table, name, chosen, expected[name].to_pylist())


def check_column(table: Table, name: str, chosen: np.ndarray, expected: list[Any]) -> None:
    """Compare a column with its values, as a whole and at some rows."""
    valid = table.valid(name, chosen)
    assert (valid is None) == (None not in expected)
    has = [True] * len(chosen) if valid is None else valid.tolist()
    assert has == [expected[row] is not None for row in chosen.tolist()]
    if table.columns[name].texts is not None:
        assert table.take_texts(name, chosen) == [expected[row] or "" for row in chosen.tolist()]
        return
    values, everything = table.take(name, chosen), table.array(name)
    assert values.dtype == everything.dtype == np.dtype(str(table.columns[name].dtype))
    for value, row in zip(values, chosen.tolist(), strict=True):
        np.testing.assert_array_equal(value, everything[row])
        if expected[row] is not None:
            np.testing.assert_array_equal(value, expected[row])


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.large_list(pa.float32()), pa.list_(pa.large_string(), 2), pa.list_(TEXT, 2), pa.list_(pa.float32(), 0)),
        *(pa.list_(pa.list_(pa.float32(), 2), 2), pa.string(), pa.dictionary(pa.int32(), pa.string()), pa.null()),
        *(pa.dictionary(pa.int32(), pa.int64()), pa.large_binary(), pa.timestamp("s"), pa.struct([("x", pa.int32())])),
    ],
    ids=str,
)
@pytest.mark.parametrize("rows", [0, 3])
def test_columns_of_other_types_are_neither_numbers_nor_texts(tmp_path: Path, kind: pa.DataType, rows: int) -> None:
    table = open_table(written(tmp_path, step_table(rows, other=pa.nulls(rows, kind))), "steps")
    assert (table.columns["other"].dtype, table.columns["other"].texts) == (None, None)
    assert table.arrow()["other"].type == kind


def test_vectors_with_a_number_missing_are_no_numbers(tmp_path: Path) -> None:
    vectors = pa.array([[1, None], [2, 3]], pa.list_(pa.float32(), 2))
    table = open_table(written(tmp_path, step_table(2, vectors=vectors)), "steps")
    assert table.columns["vectors"].dtype is None


@pytest.mark.parametrize("rows", [0, 4])
@pytest.mark.parametrize("text", ["", None])
def test_texts_that_are_all_empty_or_missing_are_empty(tmp_path: Path, rows: int, text: str | None) -> None:
    texts = pa.array([text] * rows, pa.large_string())
    for column_texts in (texts, texts.dictionary_encode()):
        table = open_table(written(tmp_path, step_table(rows, texts=column_texts)), "steps")
        assert table.columns["texts"].texts is not None
        assert table.take_texts("texts", np.arange(rows)) == [""] * rows


def test_a_text_beyond_the_dictionary_or_that_is_not_utf8_is_an_error(sample: Path) -> None:
    for number in (-1, 3, 1 << 31):
        with pytest.raises(FormatError, match=f"steps.arrow: column 'language' has text {number} of 3; it is damaged"):
            open_table(sample, "steps").text("language", number)
    content = sample.read_bytes()
    assert content.count(b"do 1") == 1
    sample.unlink()
    sample.write_bytes(content.replace(b"do 1", b"do \xff"))
    table = open_table(sample, "steps")
    assert [table.text("language", number) for number in (0, 2)] == ["do 0", "do 2"]
    with pytest.raises(FormatError, match=r"steps\.arrow: column 'language' has a text 1 that is not UTF-8"):
        table.text("language", 1)


def test_pickled_it_is_its_location(tmp_path: Path) -> None:
    numbers = pa.array(np.arange(100_000))
    table = open_table(written(tmp_path, step_table(100_000, numbers=numbers)), "steps")
    assert table.array("numbers").sum() == 4_999_950_000
    pickled = pickle.dumps(table)
    assert len(pickled) < 2_000
    unpickled = pickle.loads(pickled)
    assert unpickled.columns == table.columns
    np.testing.assert_array_equal(unpickled.array("numbers"), numbers)


def test_a_table_of_no_rows_says_the_same_wherever_it_is_mapped(tmp_path: Path) -> None:
    path = written(tmp_path, step_table(0, vector=pa.nulls(0, pa.list_(pa.float32(), 2))))
    code = "import sys; from stream.format.table import open_table; print(open_table(sys.argv[1], 'steps').columns)"
    described = {subprocess.check_output([sys.executable, "-c", code, str(path)]) for _ in range(2)}
    assert described == {f"{open_table(path, 'steps').columns}\n".encode()}


def test_a_file_that_is_no_table_is_named(sample: Path) -> None:
    content = sample.read_bytes()
    for other in (content[:-1], content[: len(content) // 2], b"", bytes(len(content)), b"something else"):
        sample.write_bytes(other)
        with pytest.raises(FormatError, match=rf"^{sample}: not a complete Arrow IPC file \("):
            open_table(sample, "steps")
    sample.unlink()
    with pytest.raises(FormatError, match=rf"^{sample}: missing.*run the same `python -m convert.run`"):
        open_table(sample, "steps")


def test_a_table_that_is_not_as_the_manifest_and_the_format_say_is_refused(sample: Path, tmp_path: Path) -> None:
    entry = describe_table(sample, "steps")
    assert len(open_table(sample, "steps", entry=entry, rows=9)) == 9
    for size in (entry.bytes - 1, entry.bytes + 1):
        with pytest.raises(FormatError, match=rf"^{sample}: {entry.bytes:,} bytes, the manifest says {size:,}"):
            open_table(sample, "steps", entry=entry.model_copy(update={"bytes": size}))
    with pytest.raises(FormatError, match=rf"^{sample}: 9 rows, the manifest says 1,000"):
        open_table(sample, "steps", rows=1000)
    with pytest.raises(FormatError, match=rf"^{sample}: column 1 is .*step: int32 .*, expected .*shard: int32"):
        open_table(sample, "episodes")
    for name in ("episode", "step", "language"):
        path = written(tmp_path, step_table(3).drop_columns([name]))
        with pytest.raises(FormatError, match=rf"^{path}: column \d is .*, expected .*; convert did not write it"):
            open_table(path, "steps")


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = step_table(3, x=pa.array([1, 2, 3]))
    path = written(tmp_path, table.append_column("x", pa.array([4, 5, 6])))
    with pytest.raises(FormatError, match=rf"^{path}: two columns 'x'"):
        open_table(path, "steps")


@pytest.mark.parametrize(
    ("batches", "compression", "message"),
    [(count, None, f"{count} record batches, expected one") for count in (0, 2)]
    + [(1, codec, r"column '\w+' is not stored plainly; it is compressed") for codec in ("lz4", "zstd")],
)
def test_a_table_that_is_compressed_or_not_of_one_batch_is_refused(
    tmp_path: Path, batches: int, compression: str | None, message: str
) -> None:
    path, table = tmp_path / "steps.arrow", step_table(1000).combine_chunks()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema, options=options) as writer:
        for batch in table.to_batches() * batches:
            writer.write_batch(batch)
    with pytest.raises(FormatError, match=rf"^{path}: {message}"):
        open_table(path, "steps")


@pytest.mark.parametrize("value", long_but([0x01], [0x01, 0xFF]))
def test_a_changed_byte_leads_nowhere_but_to_a_format_error(sample: Path, value: int) -> None:
    content, refused = sample.read_bytes(), 0
    for offset in range(len(content)):
        # The old file is mapped, so it is not overwritten.
        sample.unlink()
        sample.write_bytes(content[:offset] + bytes([value]) + content[offset + 1 :])
        try:
            table = open_table(sample, "steps")
            rows = np.arange(min(9, len(table)))
            for name, damaged in table.columns.items():
                table.valid(name, rows)
                if damaged.dtype is not None:
                    table.array(name)
                    table.take(name, rows)
                if damaged.texts is not None:
                    table.take_texts(name, rows)
        except FormatError as error:
            assert str(error).startswith(str(sample))
            refused += 1
    assert refused


def test_the_hash_of_a_column_is_that_of_its_bytes_and_of_no_others(sample: Path) -> None:
    table, content = open_table(sample, "steps"), sample.read_bytes()
    hashes = {name: hash_column(table.content, column) for name, column in table.columns.items()}
    for name, column in table.columns.items():
        column_bytes = b"".join(content[start:stop] for start, stop in column.spans)
        assert hashes[name] == xxhash.xxh3_64_hexdigest(column_bytes)
    seen = set()
    for offset in range(len(content)):
        changed = np.frombuffer(content, np.uint8).copy()
        changed[offset] ^= 1
        differing, inside = set(), set()
        for name, column in table.columns.items():
            if hash_column(changed, column) != hashes[name]:
                differing.add(name)
            if any(start <= offset < stop for start, stop in column.spans):
                inside.add(name)
        assert differing == inside
        seen |= differing
    assert seen == set(table.columns)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a file"
    path.write_bytes(bytes(range(256)) * 100)
    return path


def is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


def test_a_mapped_file_cannot_be_written_to_and_is_mapped_as_long_as_anything_made_of_it(path: Path) -> None:
    mapped = map_file(str(path))
    assert mapped.tobytes() == path.read_bytes()
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 1
    del mapped
    part = map_file(str(path))[256:].view("<i4")[1:3]
    gc.collect()
    assert is_mapped(path)
    assert part.tolist() == [0x07060504, 0x0B0A0908]
    del part
    assert not is_mapped(path)


@pytest.mark.parametrize(
    ("name", "code"), [("missing", errno.ENOENT), (".", errno.EISDIR), ("larger than memory", errno.ENOMEM)]
)
def test_what_cannot_be_mapped_is_named(tmp_path: Path, name: str, code: int) -> None:
    with (tmp_path / "larger than memory").open("wb") as file:
        file.truncate(1 << 40)
    with memory_limit(1 << 30), pytest.raises(OSError) as raised:
        map_file(str(tmp_path / name))
    assert (raised.value.filename, raised.value.errno) == (str(tmp_path / name), code)


def test_the_end_of_the_interpreter_is_silent(sample: Path) -> None:
    # Modules are emptied in reverse order of import.
    code = "import sys, numpy, stream.format.table as m; numpy.kept = m, m.open_table(sys.argv[1], 'steps')"
    done = subprocess.run([sys.executable, "-c", code, str(sample)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
