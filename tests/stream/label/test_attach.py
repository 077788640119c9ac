"""Labels are columns of the steps like any other; a table that does not fit is refused, and changes nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import stream
from convert.verify.command import verify_root
from stream.base.errors import ArgumentError, StateError, StreamError
from stream.format.manifest import read_manifest
from stream.format.names import MANIFEST_NAME
from tests.fixtures.command import tree
from tests.stream.index_root import open_split, write_dataset
from tests.stream.label.conftest import LENGTHS

STEPS = 15


@pytest.fixture
def folder(root: Path) -> Path:
    return next(root.glob("demo/*"))


def keys() -> tuple[np.ndarray, np.ndarray]:
    """Episode and step of each step of ``train``."""
    lengths = [length for shard in LENGTHS["train"] for length in shard]
    return np.repeat(np.arange(3), lengths), np.concatenate([np.arange(length) for length in lengths])


def some(rows: np.ndarray, **more: Any) -> pa.Table:
    episode, step = keys()
    return pa.table({"episode": episode[rows], "step": step[rows], **more})


def column(folder: Path, name: str, split: str = "train") -> tuple[Any, Any]:
    table = open_split(folder, split).steps
    rows = np.arange(len(table))
    values = table.take_texts(name, rows) if table.columns[name].texts else table.take(name, rows)
    return values, table.valid(name, rows)


def label_problems(root: Path) -> set[str]:
    """Files of labels that ``pairstream verify`` complains of."""
    return {str(problem.file) for problem in verify_root(root, jobs=1).problems if "/labels/" in str(problem.file)}


ROWS = np.random.default_rng(0).permutation(STEPS)[:12]
VALUES: dict[str, pa.Array] = {
    "value": pa.array(np.random.default_rng(1).normal(size=12).astype("f4")),
    "double": pa.array(np.random.default_rng(2).normal(size=12)),
    "good": pa.array([True, False, None] * 4),
    "visits": pa.array([2**53 + 1, None, -3] * 4),
    "task": pa.array(["reach", "", None, "grasp ☕"] * 3),
    "latent": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(12 * 7, dtype="f2") / 9), 7),
    "pair": pa.array([[1, 2], None, [3, 4]] * 4, pa.list_(pa.int16())),
}


@pytest.mark.parametrize("batch", [1, 5, 1 << 17])
def test_labels_of_every_kind_are_what_the_table_says_and_missing_where_it_says_nothing(
    root: Path, folder: Path, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stream.label.table._MOST_ROWS", batch)
    stream.add_labels(root, "demo", some(ROWS, **VALUES), name="all", split="train")
    missing = np.setdiff1d(np.arange(STEPS), ROWS)
    for name, array in VALUES.items():
        values, valid = column(folder, name)
        assert valid is not None and not valid[missing].any()
        for row, value in zip(ROWS.tolist(), array.to_pylist(), strict=True):
            assert valid[row] == (value is not None)
            if value is not None:
                np.testing.assert_array_equal(values[row], value)
    assert np.isnan(column(folder, "value")[0][missing]).all()
    assert np.isnan(column(folder, "latent")[0][missing].astype("f8")).all()
    assert column(folder, "latent")[0].dtype == np.float16 and column(folder, "visits")[0].dtype == np.int64
    assert label_problems(root) == set()
    listed = stream.list_labels(root, "demo")
    assert listed["train"]["all"]["latent"] == {"type": "float16[7]", "missing": 3}
    assert list(listed) == ["train"]


def test_a_batch_has_labels_with_their_masks(root: Path) -> None:
    stream.add_labels(root, "demo", some(ROWS, **VALUES), name="all", split="train")
    loader = stream.make_loader(root, "demo", batch_size=9, columns=["value", "visits", "task", "latent"], num_epochs=1)
    batch = loader.batch_at(0)
    episode, step = keys()
    row_by_key = {key: row for row, key in enumerate(zip(episode.tolist(), step.tolist(), strict=True))}
    for row, key in enumerate(zip(batch["episode"].tolist(), batch["step"].tolist(), strict=True)):
        table_rows = np.flatnonzero(row_by_key[key] == ROWS)
        for name in ("value", "visits", "latent"):
            value, mask = batch[name][row], batch[f"{name}_mask"][row]
            expected = VALUES[name][int(table_rows[0])].as_py() if len(table_rows) else None
            assert np.all(mask == (expected is not None))
            lacking = 0 if name == "visits" else np.nan
            np.testing.assert_array_equal(value, lacking if expected is None else expected)
        assert batch["task"][row] == ((VALUES["task"][int(table_rows[0])].as_py() or "") if len(table_rows) else "")


def test_a_column_of_masks_says_where_the_others_are_missing(root: Path, folder: Path) -> None:
    has = pa.array([True, False, None] * 4)
    masks = {f"{name}_mask": has for name in VALUES}
    stream.add_labels(root, "demo", some(ROWS, **VALUES, **masks), name="all", split="train")
    assert list(stream.list_labels(root, "demo")["train"]["all"]) == list(VALUES)
    for name, array in VALUES.items():
        _, valid = column(folder, name)
        assert valid is not None
        masked_values = zip(array.to_pylist(), has.to_pylist(), strict=True)
        assert valid[ROWS].tolist() == [bool(mask) and value is not None for value, mask in masked_values]
    stream.add_labels(root, "demo", some(ROWS, value_mask=has), split="train")
    with pytest.raises(ArgumentError, match=r"columns: 'value_mask' is a key of the batch already.*steps\.value_mask"):
        stream.make_loader(root, "demo", batch_size=1, columns=["value_mask", "value"])
    batch = stream.make_loader(root, "demo", batch_size=1, columns=["steps.value_mask", "value"]).batch_at(0)
    assert {"value", "value_mask", "steps.value_mask", "steps.value_mask_mask"} <= set(batch)


@pytest.mark.parametrize("ending", ["parquet", "csv", "arrow", "feather", "folder"])
def test_tables_come_from_files_of_each_kind(root: Path, folder: Path, tmp_path: Path, ending: str) -> None:
    table = some(ROWS, value=pa.array(np.arange(12) / 8, pa.float32()))
    path = tmp_path / f"value.{ending}"
    if ending == "parquet":
        pq.write_table(table, path, row_group_size=5)
    elif ending == "csv":
        pyarrow.csv.write_csv(table, path)
    elif ending == "folder":
        path.mkdir()
        for part in range(2):
            pq.write_table(table.slice(6 * part, 6), path / f"{part}.parquet")
    else:
        pyarrow.feather.write_feather(table, str(path), compression="lz4")
    stream.add_labels(root, "demo", path, split="train")
    np.testing.assert_array_equal(column(folder, "value")[0][ROWS], np.arange(12) / 8)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"episode": [2, 0], "start": [1, 0], "stop": [4, 5], "x": [7, 8]}, [8] * 5 + [0] * 4 + [0, 7, 7, 7, 0, 0]),
        ({"episode_index": [1], "x": [9]}, [0] * 5 + [9] * 4 + [0] * 6),
        ({"episode_index": [2, 0], "frame_index": [5, 0], "x": [1, 2]}, [2] + [0] * 13 + [1]),
        ({"episode": [2], "frame_index": [5], "index": [99], "dataset": ["demo"], "x": [1]}, [0] * 14 + [1]),
    ],
)
def test_steps_are_named_one_by_one_by_ranges_and_by_whole_episodes(
    root: Path, folder: Path, table: dict[str, Any], expected: list[int]
) -> None:
    stream.add_labels(root, "demo", table, split="train")
    values, valid = column(folder, "x")
    assert values.tolist() == expected
    assert valid is not None and (valid == (np.array(expected) > 0)).all()


def test_lerobots_index_counts_the_steps_of_a_dataset_of_one_split(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path, "demo", {"train": LENGTHS["train"]})
    with pytest.raises(ArgumentError, match=r"1 row of no step \(index 15\)"):
        stream.add_labels(tmp_path, "demo", {"index": [15, 0], "x": [1, 2]})
    stream.add_labels(tmp_path, "demo", {"index": [14, 0], "x": [1, 2]})
    assert column(folder, "x")[0].tolist() == [2] + [0] * 13 + [1]
    assert stream.make_loader(tmp_path, "demo", batch_size=1).describe()["demo"]["labels"] == ["x"]
    folder = write_dataset(tmp_path, "short", {"train": [[0, 3]]})
    with pytest.raises(ArgumentError, match="episode 0 has no steps here"):
        stream.add_labels(tmp_path, "short", {"index": [0], "x": [1]})


def test_ids_name_episodes_of_all_splits_and_numbers_need_a_split(root: Path, folder: Path) -> None:
    train, val = (open_split(folder, split).episodes for split in ("train", "val"))
    ids = train.take_texts("episode_id", np.arange(1, 3)) + val.take_texts("episode_id", np.zeros(1, int))
    with pytest.raises(ArgumentError, match=r"episode is a number in a split.*--split \(train, val\)"):
        stream.add_labels(root, "demo", {"episode": [0], "x": [1]})
    stream.add_labels(root, "demo", {"episode": [0], "x": [1]}, split="train")
    for split in ("train+val", "val+train"):
        with pytest.raises(ArgumentError, match="split val: has no label 'x', which split train has; attach it there"):
            stream.make_loader(root, "demo", batch_size=1, split=split, columns=["x"])
    stream.remove_labels(root, "demo", "x")
    stream.add_labels(root, "demo", {"episode_id": ids, "x": [1, 2, 3]})
    assert column(folder, "x")[0].tolist() == [0] * 5 + [1] * 4 + [2] * 6
    assert column(folder, "x", "val")[0].tolist() == [3] * 3


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"episode": [0, 7, 8, 9, 10, 11, 12], "step": [0] * 7, "x": [1] * 7}, r"6 rows of unknown episodes \(episode 7"),
    ({"episode": [0, 1], "step": [4, 4], "x": [1, 2]}, r"1 row beyond the end of their episodes \(episode 1 step 4\)"),
    ({"episode": [0, 0], "step": [4, -1], "x": [1, 2]}, "1 row beyond the end"),
    ({"episode": [0, 1, 0], "step": [1, 1, 1], "x": [1, 2, 3]}, r"1 row that name a step again \(episode 0 step 1\)"),
    ({"episode": [0, 0], "start": [0, 2], "stop": [3, 4], "x": [1, 2]}, "1 row that name a step again"),
    ({"episode": [0], "start": [3], "stop": [3], "x": [1]}, "1 row whose start is not before their stop"),
    ({"episode": [0], "start": [3], "stop": [6], "x": [1]}, "1 row beyond the end"),
    ({"episode": [0, None], "step": [1, 1], "x": [1, 2]}, "1 row without episode"),
    ({"dataset": ["demo", "bridge"], "episode": [0, 1], "step": [1, 1], "x": [1, 2]}, "1 row of another dataset"),
    ({"episode": [0], "step": [1], "frame_index": [2], "x": [1]}, "1 row whose keys name different steps"),
    ({"episode_id": ["elsewhere"], "x": [1]}, r"1 row of unknown episodes.*with ids like 'demo-train"),
    ({"index": [1], "x": [1]}, "the dataset has several splits"),
    ({"step": [1], "x": [1]}, "expected a key of the episode"),
    ({"episode": [0], "start": [1], "x": [1]}, "start and stop together"),
    ({"episode": [0]}, "no column to attach"),
    ({"episode": [0.5], "x": [1]}, "not every value is a whole number"),
    ({"episode": [0], "reward": [1]}, "column 'reward' exists, in steps"),
    ({"episode": [0], "score": [1]}, "column 'score' exists, in episodes"),
    ({"episode": [0], "motion": [1]}, "column 'motion' exists, in steps"),
    ({"episode": [0], "steps.x": [1]}, "a label cannot have this name"),
    ({"episode": [0, 1], "x": [[1], [1, 2]]}, "lists of several lengths"),
    ({"episode": [0], "x": [{"a": 1}]}, "a label is a number"),
    ({"episode": [0], "x": [None]}, "column 'x' has no value at all"),
    ({"episode": pa.array([], pa.int64()), "x": pa.array([], pa.int64())}, "has no rows"),
    ({"episode": [0], "a": [1], "b": [1]}, "name the labels of a, b"),
]


ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"columns": "x"}, "columns='x'; expected a list of names"),
    ({"columns": ["z"]}, "no column 'z' to attach; columns there: x"),
    ({"columns": ["episode"]}, "no column 'episode' to attach; is a key"),
    ({"name": "../x"}, "name='../x'; name the labels"),
    ({"name": 3}, "name=3; name the labels"),
    ({"split": "tran"}, "no split 'tran'; did you mean 'train'"),
    ({"overwrit": True}, "unknown argument 'overwrit'"),
]
X = {"episode": [0], "x": [1]}


@pytest.mark.parametrize(
    ("table", "arguments", "message"),
    [*((table, {}, message) for table, message in WRONG), *((X, options, message) for options, message in ARGUMENTS)],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_table_or_an_argument_that_does_not_fit_is_one_error_and_nothing_is_written(
    root: Path, table: dict[str, Any], arguments: dict[str, Any], message: str
) -> None:
    before = tree(root)
    with pytest.raises(ArgumentError, match=message):
        stream.add_labels(root, "demo", table, **{"split": "train", **arguments})
    assert tree(root) == before


def test_all_faults_are_counted_over_all_batches_and_five_are_shown(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stream.label.table._MOST_ROWS", 3)
    table = {"episode": [*range(3, 14), 0, 0], "step": [0] * 13, "x": [1] * 13}
    with pytest.raises(ArgumentError) as error:
        stream.add_labels(root, "demo", table, split="train")
    assert "11 rows of unknown episodes (episode 3 step 0, episode 4 step 0, " in str(error.value)
    assert "episode 7 step 0, ...); 1 row that name a step again" in str(error.value)


def test_labels_are_replaced_only_on_demand_and_go_without_a_trace(root: Path, folder: Path) -> None:
    before, manifest = tree(root), read_manifest(folder)
    stream.add_labels(root, "demo", {"episode": [0], "x": [1]}, split="train")
    labelled = read_manifest(folder)
    assert labelled.checksum != manifest.checksum and labelled.data == manifest.data == manifest.checksum
    with pytest.raises(ArgumentError, match="labels 'x' exist, with x; replace them with --overwrite"):
        stream.add_labels(root, "demo", {"episode": [0], "x": [2]}, split="train")
    with pytest.raises(ArgumentError, match="column 'x' exists, in labels 'x'"):
        stream.add_labels(root, "demo", {"episode": [0], "x": [2]}, split="train", name="other")
    stream.add_labels(root, "demo", {"episode": [0], "x": [2.5], "y": ["a"]}, split="train", name="x", overwrite=True)
    assert column(folder, "x")[0][0] == 2.5
    assert (folder / "train" / "labels" / "x.arrow").is_file()
    with pytest.raises(ArgumentError, match="no labels 'z'"):
        stream.remove_labels(root, "demo", "z")
    stream.remove_labels(root, "demo", "x")
    assert tree(root) == before
    assert not (folder / "train" / "labels").exists()


def test_conditions_select_by_labels_and_bind_a_state_to_their_content(root: Path) -> None:
    stream.add_labels(root, "demo", some(np.arange(STEPS), value=np.arange(15.0)), split="train")
    stream.add_labels(root, "demo", some(np.arange(STEPS), other=np.arange(15.0)), split="train")
    select = stream.Select(where=[("value", ">", 3)])

    def open_loader() -> stream.Loader:
        return stream.make_loader(root, "demo", batch_size=2, select=select)

    loader = open_loader()
    samples = stream.make_loader(root, "demo", batch_size=2, select=select, columns=["value"], num_epochs=1)
    assert min(batch["value"].min() for batch in samples) > 3
    state = iter(loader).get_state()
    stream.add_labels(root, "demo", some(np.arange(STEPS), other=np.ones(15)), split="train", overwrite=True)
    iter(open_loader()).set_state(state)
    changed = some(np.arange(STEPS), value=np.arange(15.0) + 1e-9)
    stream.add_labels(root, "demo", changed, split="train", overwrite=True)
    with pytest.raises(StateError, match="another order of samples"):
        iter(open_loader()).set_state(state)


def test_labels_become_an_action_and_have_statistics(root: Path) -> None:
    stream.add_labels(root, "demo", some(ROWS, **VALUES), name="all", split="train")
    more: dict[str, Any] = {"normalize": {"method": "mean_std", "keys": ["action"]}}
    latent = stream.Vector(1, columns={"demo": ["latent"]})
    loader = stream.make_loader(root, "demo", batch_size=3, action=latent, **more)
    assert loader.batch_at(0)["action"].shape == (3, 1, 7)
    assert loader.normalize is not None
    statistics = loader.normalize.statistics["action"]["demo"]
    numbers = np.array(VALUES["latent"].to_pylist())
    np.testing.assert_allclose(statistics.mean, numbers.mean(axis=0), rtol=1e-3)


@pytest.mark.long
def test_a_run_goes_on_while_its_labels_are_replaced_and_removed(root: Path) -> None:
    stream.add_labels(root, "demo", some(np.arange(STEPS), value=np.arange(15.0)), split="train")
    loader = stream.make_loader(root, "demo", batch_size=4, columns=["value"], num_workers=1)
    expected = [loader.batch_at(step)["value"] for step in range(4)]
    iterator = iter(loader)
    np.testing.assert_array_equal(next(iterator)["value"], expected[0])
    stream.add_labels(root, "demo", some(np.arange(STEPS), value=-np.ones(15)), split="train", overwrite=True)
    np.testing.assert_array_equal(next(iterator)["value"], expected[1])
    stream.remove_labels(root, "demo", "value")
    np.testing.assert_array_equal(next(iterator)["value"], expected[2])
    iterator.close()
    # A process that starts now would read other values: it says so.
    with pytest.raises((StreamError, ValueError, OSError)):
        next(iter(loader))


@pytest.mark.long
def test_two_commands_at_once_lose_nothing(root: Path, tmp_path: Path) -> None:
    started = []
    for number in range(4):
        path = tmp_path / f"label{number}.csv"
        pyarrow.csv.write_csv(some(np.arange(STEPS), **{f"label{number}": np.arange(15.0)}), path)
        command = [sys.executable, "-m", "pairstream", "label", str(root), "demo", str(path), "--split", "train"]
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    errors = [process.communicate()[1] for process in started]
    assert [process.returncode for process in started] == [0] * 4, errors
    assert list(stream.list_labels(root, "demo")["train"]) == [f"label{number}" for number in range(4)]


def test_verify_tells_of_damaged_missing_and_unknown_labels(root: Path, folder: Path) -> None:
    stream.add_labels(root, "demo", {"episode": [0], "x": [1]}, split="train")
    path = folder / "train" / "labels" / "x.arrow"
    content = bytearray(path.read_bytes())
    content[-300] ^= 1
    path.write_bytes(content)
    (path.parent / "y.arrow").write_bytes(b"")
    assert label_problems(root) == {str(path), str(path.parent / "y.arrow")}
    path.unlink()
    with pytest.raises(ValueError, match=r"x.arrow: missing.*stream.label ROOT DATASET --remove NAME"):
        open_split(folder)


@pytest.mark.parametrize("table", ["none.parquet", "notes.txt", "broken.parquet", "s3://bucket/x.parquet", 7])
def test_what_is_no_table_is_refused(root: Path, tmp_path: Path, table: Any) -> None:
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    label_table_path = tmp_path / table if isinstance(table, str) and "s3" not in table else table
    message = r"no such file|expected a file|cannot be read|a local file|expected a parquet"
    with pytest.raises(ArgumentError, match=message):
        stream.add_labels(root, "demo", label_table_path, split="train")


def test_the_command_attaches_lists_and_removes(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pairstream.label import main

    pyarrow.csv.write_csv(some(ROWS, value=np.arange(12) + 0.5), tmp_path / "value.csv")
    arguments = [str(root), "demo"]
    assert main([*arguments, str(tmp_path / "value.csv"), "--split", "train"]) == 0
    assert capsys.readouterr().out == "demo train: labels value: value float64 (missing at 3 steps)\n"
    assert main(arguments) == 0
    assert capsys.readouterr().out == "train value: value float64 (missing at 3 steps)\n"
    assert main([*arguments, "--split", "train", str(tmp_path / "value.csv")]) == 2
    assert "labels 'value' exist" in capsys.readouterr().err
    assert main([*arguments, "--remove", "value"]) == 0
    assert main([*arguments, "--remove", "value"]) == 2
    assert main(["s3://bucket/oxe", "demo", str(tmp_path / "value.csv")]) == 2
    assert "labels are attached to local roots" in capsys.readouterr().err
    assert main([*arguments, str(tmp_path / "none.csv")]) == 2
    assert MANIFEST_NAME in {path.name for path in root.rglob("*")}
