"""Parts of shards become the index of a split, and are cut out of it again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from convert.errors import ConvertError, ShardError
from convert.index import tables
from convert.index.derived import derive_vector
from convert.index.shards import list_shards
from convert.index.tables import derive_steps, extract_part, merge_index
from convert.registry.dataset import Part
from stream.format.manifest import ShardEntry, SplitEntry, TableEntry, describe_file
from stream.format.names import TABLE_KINDS, VECTORS, TableKind, table_file
from stream.format.schema import FIRST_FIELDS
from stream.format.table import hash_column, open_table
from tests.fixtures.datasets.index_parts import ACTION, MAPPED, STATE, shard_tables, write_parts

Parts = list[dict[TableKind, Path]]
Entries = dict[TableKind, TableEntry]
EPISODES = (5, 0, 13, 1, 40, 0, 3)
KINDS = pytest.mark.parametrize("kind", TABLE_KINDS)
Shards = list[dict[TableKind, pa.Table]]


@pytest.fixture(scope="module")
def shards() -> Shards:
    return [shard_tables(count, seed, absent=seed % 2 == 0) for seed, count in enumerate(EPISODES)]


@pytest.fixture(scope="module")
def parts(shards: Shards, tmp_path_factory: pytest.TempPathFactory) -> Parts:
    return write_parts(tmp_path_factory.mktemp("parts") / "parts", shards)


@pytest.fixture(scope="module")
def index(parts: Parts, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[TableKind, TableEntry]]:
    return merged(tmp_path_factory.mktemp("merged") / "train", parts)


@pytest.fixture(scope="module")
def folder(index: tuple[Path, dict[TableKind, TableEntry]]) -> Path:
    return index[0]


@pytest.fixture(scope="module")
def entries(index: tuple[Path, dict[TableKind, TableEntry]]) -> Entries:
    return index[1]


def merged(folder: Path, parts: Parts) -> tuple[Path, dict[TableKind, TableEntry]]:
    folder.mkdir()
    return folder, merge_index(folder, parts, {"action": ACTION, "state": STATE, **MAPPED})


def read(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as file:
        reader = pa.ipc.open_file(file)
        assert reader.num_record_batches == 1
        table = reader.read_all()
    table.validate(full=True)
    return table


@KINDS
def test_every_value_of_every_shard_is_in_the_index(kind: TableKind, shards: Shards, folder: Path) -> None:
    table = read(folder / table_file(kind))
    numbered = {"episode", "shard", "steps_row", "first_steps_row", "first_record"}
    for name in shards[0][kind].column_names:
        if name not in numbered:
            expected = [value for tables in shards for value in tables[kind][name].to_pylist()]
            assert table[name].to_pylist() == expected, name


@KINDS
def test_the_columns_are_those_of_the_format_then_derived_then_features(
    kind: TableKind, shards: Shards, folder: Path
) -> None:
    schema = read(folder / table_file(kind)).schema
    first = len(FIRST_FIELDS[kind])
    derived = [*VECTORS, *MAPPED] if kind == "steps" else []
    assert list(schema)[:first] == list(FIRST_FIELDS[kind])
    assert schema.names[first : first + len(derived)] == derived
    features = list(shards[0][kind].schema)[first:]
    assert all(
        actual.equals(field, check_metadata=True)
        for actual, field in zip(list(schema)[first + len(derived) :], features, strict=True)
    )
    assert not any(schema.field(name).nullable for name in derived)


def test_numbers_count_in_the_split(shards: Shards, folder: Path) -> None:
    episodes, steps, records = (read(folder / table_file(kind)) for kind in ("episodes", "steps", "records"))
    assert episodes["episode"].to_pylist() == list(range(sum(EPISODES)))
    assert episodes["shard"].to_pylist() == [shard for shard, count in enumerate(EPISODES) for _ in range(count)]
    counts = np.array(episodes["num_steps"])
    assert episodes["first_steps_row"].to_pylist() == (np.cumsum(counts) - counts).tolist()
    assert steps["episode"].to_pylist() == np.repeat(np.arange(len(counts)), counts).tolist()
    actual = np.array(episodes["num_records"])
    assert episodes["first_record"].to_pylist() == (np.cumsum(actual) - actual).tolist()
    assert records["episode"].to_pylist() == np.repeat(np.arange(len(counts)), actual).tolist()
    shard = [number for number, tables in enumerate(shards) for _ in range(tables["records"].num_rows)]
    assert records["shard"].to_pylist() == shard
    for name in ("episode", "step"):
        assert steps[name].take(records["steps_row"]).to_pylist() == records[name].to_pylist()


def test_derived_columns_are_the_registrys_vectors(folder: Path) -> None:
    steps = read(folder / table_file("steps"))
    rows = zip(steps["action"].to_pylist(), steps["action_"].to_pylist(), steps["flag"].to_pylist(), strict=True)
    for action, moved, flag in rows:
        np.testing.assert_array_equal(action, [*(moved or [np.nan] * 3), np.nan if flag is None else flag])
    for state, raw in zip(steps["state"].to_pylist(), steps["observation/state"].to_pylist(), strict=True):
        np.testing.assert_array_equal(state, [np.nan] * 2 if raw is None else np.array([raw[4], raw[0]], np.float32))


def test_without_parts_there_are_no_derived_columns(parts: Parts, tmp_path: Path) -> None:
    merge_index(tmp_path, parts, {"state": STATE})
    names = read(tmp_path / table_file("steps")).column_names
    assert "action" not in names and "state" in names and "action_" in names


@KINDS
def test_texts_of_a_dictionary_are_in_the_order_of_the_first_row_that_has_them(kind: TableKind, folder: Path) -> None:
    table = read(folder / table_file(kind))
    for name in table.column_names:
        if pa.types.is_dictionary(table.schema.field(name).type):
            texts = list(dict.fromkeys(text for text in table[name].to_pylist() if text is not None))
            assert table[name].chunk(0).dictionary.to_pylist() == texts


@KINDS
def test_a_loader_opens_the_files_and_their_entries_are_right(kind: TableKind, folder: Path, entries: Entries) -> None:
    path = folder / table_file(kind)
    table = open_table(path, kind, entry=entries[kind])
    actual = {name: hash_column(table.content, column) for name, column in table.columns.items()}
    assert actual == entries[kind].columns
    file = describe_file(path)
    assert (file.bytes, file.sha256) == (entries[kind].bytes, entries[kind].sha256)


def test_parts_cut_out_of_an_index_are_those_it_was_merged_from(
    parts: Parts, folder: Path, entries: Entries, tmp_path: Path
) -> None:
    cut = []
    counts = [{kind: read(path).num_rows for kind, path in files.items()} for files in parts]
    shards = tuple(ShardEntry.model_construct(**count) for count in counts)
    split = SplitEntry.model_construct(episodes=0, steps=0, records=0, shards=shards, index=entries)
    for shard, files in zip(list_shards(folder, split), parts, strict=True):
        cut.append({kind: tmp_path / f"{shard.number}.{kind}" for kind in TABLE_KINDS})
        extract_part(shard, cut[-1])
        for kind in TABLE_KINDS:
            assert cut[-1][kind].read_bytes() == files[kind].read_bytes()
    assert merged(tmp_path / "again", cut)[1] == entries


def test_the_order_and_number_of_texts_in_the_dictionaries_of_parts_do_not_matter(
    shards: Shards, entries: Entries, tmp_path: Path
) -> None:
    def shuffled(table: pa.Table) -> pa.Table:
        for path, field in enumerate(table.schema):
            if pa.types.is_dictionary(field.type):
                rows = table[field.name].to_pylist()
                texts = [*sorted({*rows} - {None}, reverse=True), "of no row"]
                numbers = [None if row is None else texts.index(row) for row in rows]
                column = pa.DictionaryArray.from_arrays(
                    pa.array(numbers, pa.int32()), pa.array(texts, pa.large_string())
                )
                table = table.set_column(path, field, column)
        return table

    repeated = write_parts(tmp_path / "parts", [{kind: shuffled(t) for kind, t in tables.items()} for tables in shards])
    assert merged(tmp_path / "again", repeated)[1] == entries


@pytest.mark.parametrize("counts", [(0,), (0, 0), (7,)], ids=["no episode", "two shards of none", "one shard"])
def test_few_shards_and_no_rows_are_an_index_too(counts: tuple[int, ...], tmp_path: Path) -> None:
    parts = write_parts(tmp_path / "parts", [shard_tables(count, 3) for count in counts])
    folder, entries = merged(tmp_path / "train", parts)
    for kind in TABLE_KINDS:
        assert open_table(folder / table_file(kind), kind, entry=entries[kind]).rows == read(parts[0][kind]).num_rows


@pytest.mark.long
def test_memory_does_not_grow_with_the_index(tmp_path: Path) -> None:
    tables = dict(shard_tables(1, 1))
    rows = 5_000
    tables["episodes"] = with_column(tables["episodes"], "num_steps", np.full(1, rows, np.int32))
    tables["records"] = tables["records"].slice(0, 0)
    tables["episodes"] = with_column(tables["episodes"], "num_records", np.zeros(1, np.int32))
    few = shard_tables(40, 2)["steps"].slice(0, 50)
    tables["steps"] = pa.concat_tables([few] * (rows // 50))
    (part,) = write_parts(tmp_path / "parts", [tables])
    peaks = [merge_peak(tmp_path / str(count), part, count) for count in (2, 250)]
    size = sum(path.stat().st_size for path in (tmp_path / "250").iterdir())
    assert size > 200 << 20
    assert peaks[1] - peaks[0] < 30 << 20


def with_column(table: pa.Table, name: str, values: np.ndarray) -> pa.Table:
    path = table.schema.get_field_index(name)
    return table.set_column(path, table.schema.field(path), pa.array(values))


def merge_peak(folder: Path, part: Mapping[TableKind, Path], count: int) -> int:
    """Merge a part ``count`` times in a process of its own; returns the most memory that it had."""
    folder.mkdir()
    program = """if True:
        import sys
        from pathlib import Path
        from convert.index.tables import merge_index
        from tests.fixtures.datasets.index_parts import ACTION, STATE
        from tests.fixtures.faults.memory_limit import peak_bytes
        folder, count, *files = sys.argv[1:]
        part = dict(zip(("episodes", "steps", "records"), map(Path, files)))
        merge_index(Path(folder), [part] * int(count), {"action": ACTION, "state": STATE})
        print(peak_bytes())
    """
    files = [str(part[kind]) for kind in ("episodes", "steps", "records")]
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder), str(count), *files], check=True, capture_output=True, text=True
    )
    return int(done.stdout)


def test_a_part_without_a_column_is_refused_with_shard_and_column(shards: Shards, tmp_path: Path) -> None:
    changed = [dict(tables) for tables in shards[:3]]
    changed[2]["steps"] = changed[2]["steps"].drop_columns(["ragged"])
    with pytest.raises(ShardError, match=r"00002\.steps\.arrow: column 'nested'.* expected .*ragged.*as in the shards"):
        merged(tmp_path / "train", write_parts(tmp_path / "parts", changed))


def test_a_column_of_null_type_in_one_part_is_refused_with_shard_and_column(shards: Shards, tmp_path: Path) -> None:
    changed = [dict(tables) for tables in shards[:3]]
    steps = changed[1]["steps"]
    path = steps.schema.get_field_index("half")
    changed[1]["steps"] = steps.set_column(path, "half", pa.nulls(steps.num_rows))
    with pytest.raises(
        ShardError, match=r"00001\.steps\.arrow: column 'half' is .*half: null.*, expected .*half: halffloat"
    ):
        merged(tmp_path / "train", write_parts(tmp_path / "parts", changed))


def test_a_part_that_another_version_wrote_is_refused(shards: Shards, tmp_path: Path) -> None:
    changed = dict(shards[0])
    changed["records"] = changed["records"].drop_columns(["camera"])
    with pytest.raises(ShardError, match=r"00000\.records\.arrow: column 'offset' is .*, expected .*camera"):
        merged(tmp_path / "train", write_parts(tmp_path / "parts", [changed]))


@KINDS
def test_a_part_that_is_cut_short_is_refused(kind: TableKind, shards: Shards, tmp_path: Path) -> None:
    parts = write_parts(tmp_path / "parts", shards[:3])
    content = parts[2][kind].read_bytes()
    parts[2][kind].write_bytes(content[: len(content) // 2])
    with pytest.raises(ShardError, match=rf"00002\.{kind}\.arrow: not a complete Arrow IPC file"):
        merged(tmp_path / "train", parts)


def test_a_part_with_other_rows_than_its_episodes_say_is_refused(shards: Shards, tmp_path: Path) -> None:
    changed = [dict(tables) for tables in shards[:3]]
    changed[2]["records"] = changed[2]["records"].slice(1)
    rows = shards[2]["records"].num_rows
    with pytest.raises(
        ShardError, match=rf"00002\.records\.arrow: {rows - 1} rows, 00002\.episodes\.arrow says {rows}"
    ):
        merged(tmp_path / "train", write_parts(tmp_path / "parts", changed))


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        (Part(path="gone", dims=1, quantity="other", kind="flag"), "column 'gone' is missing"),
        (Part(path="said", dims=1, quantity="other", kind="flag"), "column 'said' is dictionary.*expected numbers"),
        (Part(path="action", dims=4, quantity="other", kind="flag"), "column 'action_' has 3 values, expected 4"),
        (
            Part(path="action", dims=1, select=(3,), quantity="other", kind="flag"),
            "column 'action_' has 3 values, expected at least 4",
        ),
    ],
)
def test_a_vector_of_columns_that_were_not_converted_is_refused(
    expected: Part, message: str, parts: Parts, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConvertError, match=f"state takes {expected.path}, but {message}"):
        merge_index(tmp_path, parts, {"action": ACTION, "state": (expected,)})
    with pytest.raises(ConvertError, match=f"state takes {expected.path}, but {message}"):
        derive_steps(folder, tmp_path / "steps.arrow", {"action": ACTION, "state": (expected,)})


def test_a_split_of_no_shards_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match="no shards"):
        merged(tmp_path / "train", [])


@pytest.mark.parametrize("block", [1, 3000])
def test_merging_in_blocks_of_any_size_gives_the_same_index(
    parts: Parts, folder: Path, entries: Entries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(tables, "_BLOCK", block)
    assert merged(tmp_path / "train", parts)[1] == entries


def test_a_block_holds_about_so_many_bytes_and_whole_episodes(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = read(parts[0]["steps"]).combine_chunks().to_batches()[0]
    monkeypatch.setattr(tables, "_BLOCK", batch.nbytes // 4)
    blocks = [block.column("episode").to_pylist() for block in tables._blocks(batch)]
    assert 2 < len(blocks) < 9
    assert all(last[-1] != first[0] for last, first in pairwise(blocks))
    assert [number for block in blocks for number in block] == batch.column("episode").to_pylist()


@pytest.mark.parametrize("block", [1, 4, 1 << 16])
def test_deriving_again_in_blocks_of_any_size_gives_what_merging_with_the_new_parts_gives(
    parts: Parts, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    expected = merge_index(tmp_path, parts, {"action": STATE, **MAPPED})["steps"]
    monkeypatch.setattr(tables, "_BLOCK", block)
    assert derive_steps(folder, tmp_path / "new.arrow", {"action": STATE, **MAPPED}) == expected
    assert (tmp_path / "new.arrow").read_bytes() == (tmp_path / table_file("steps")).read_bytes()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bool", "int8", "uint8", "int64", "uint64"])
def test_scalar_columns_of_any_type_become_floats_with_nan_for_absent_rows(dtype: str) -> None:
    column = pa.array(np.array([1, 1, 0]).astype(dtype), mask=np.array([False, True, False]))
    actual = derive_vector(pa.table({"x": column}), (Part(path="x", dims=1, quantity="other", kind="flag"),))
    assert actual.dtype == np.float32
    np.testing.assert_array_equal(actual, [[1], [np.nan], [0]])


@pytest.mark.parametrize("dtype", ["float16", "float32", "bool", "int32"])
def test_vectors_with_absent_rows_become_floats_also_in_a_slice(dtype: str) -> None:
    values = pa.array(np.array([0, 1, 1, 0, 0, 0, 1, 1]).astype(dtype))
    column = pa.FixedSizeListArray.from_arrays(values, 2, mask=pa.array([False, True, False, False]))
    parts = (Part(path="x", dims=2, quantity="other", kind="flag"),)
    actual = derive_vector(pa.table({"x": column}).slice(1), parts)
    np.testing.assert_array_equal(actual, [[np.nan, np.nan], [0, 0], [1, 1]])


def test_parts_are_joined_in_their_order_with_the_values_they_select() -> None:
    pose = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(12, dtype=np.float32)), 4)
    table = pa.table({"pose": pose, "open": pa.array([True, False, True])})
    parts = (
        Part(path="open", dims=1, quantity="gripper", kind="flag"),
        Part(path="pose", dims=2, select=(3, 0), quantity="other", kind="flag"),
    )
    np.testing.assert_array_equal(derive_vector(table, parts), [[1, 3, 0], [0, 7, 4], [1, 11, 8]])
