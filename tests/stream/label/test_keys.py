"""Keys name one episode and one step, or the table is refused: a row never goes to another episode than its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import stream
from convert.run.command import main as convert
from stream.base.errors import ArgumentError
from tests.fixtures.datasets.numbered_lerobot import write_numbered
from tests.stream.index_root import change_table, open_split, write_dataset


def with_numbers(folder: Path, numbers: Sequence[int | None], split: str = "train") -> None:
    """Give the episodes of a split LeRobot's numbers, as a conversion from LeRobot does."""
    field = pa.field("episode_index", pa.int64())
    change_table(
        folder, "episodes", lambda table: table.append_column(field, pa.array(numbers, field.type)), split=split
    )


def label(root: Path, folder: Path, split: str = "train", /, **table: Any) -> list[Any]:
    """Attach ``x``, and return its value at each step, None where it is missing."""
    stream.add_labels(root, folder.parent.name, table, split=split, overwrite=True)
    column: list[Any] = open_split(folder, split).steps.arrow().column("x").to_pylist()
    return column


def test_lerobots_numbers_name_episodes_in_any_order_and_in_any_split(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path, "demo", {"train": [[2, 1]], "val": [[1]]})
    with_numbers(folder, [7, 3])
    with_numbers(folder, [5], "val")
    stream.add_labels(tmp_path, "demo", {"episode_index": [3, 5, 7], "x": [1, 2, 3]})
    assert open_split(folder).steps.arrow().column("x").to_pylist() == [3, 3, 1]
    assert open_split(folder, "val").steps.arrow().column("x").to_pylist() == [2]


def test_the_number_of_a_frame_names_no_step_where_earlier_episodes_were_left_out(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path, "demo", {"test": [[2, 1]]})
    with_numbers(folder, [0, 1], "test")
    assert label(tmp_path, folder, "test", index=[2], x=[1]) == [None, None, 1]
    folder = write_dataset(tmp_path / "later", "demo", {"test": [[2, 1]]})
    with_numbers(folder, [5, 6], "test")
    with pytest.raises(ArgumentError, match=r"index counts the frames .* and some of its episodes were converted"):
        label(tmp_path / "later", folder, "test", index=[2], x=[1])


def test_a_number_that_two_episodes_have_goes_to_neither(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path, "demo", {"train": [[2, 1, 1, 2]]})
    with_numbers(folder, [0, 1, 0, 2])
    for keys in ({"episode_index": [0]}, {"episode_index": [0], "frame_index": [1]}):
        with pytest.raises(ArgumentError, match=r"1 row whose episode_index several episodes have \(episode_index 0"):
            label(tmp_path, folder, **keys, x=[1])
    assert label(tmp_path, folder, episode_index=[2, 1], x=[1, 2]) == [None, None, 2, None, 1, 1]
    # Another key says which of them is meant.
    with pytest.raises(ArgumentError, match="several episodes have"):
        label(tmp_path, folder, episode=[2], episode_index=[0], x=[1])


def test_an_episode_without_a_number_is_not_number_0(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path, "demo", {"train": [[1, 1, 1]]})
    with_numbers(folder, [None, 1, None])
    assert label(tmp_path, folder, episode_index=[1], x=[5]) == [None, 5, None]
    for number in (0, -1, 2):
        with pytest.raises(ArgumentError, match="1 row of unknown episodes"):
            label(tmp_path, folder, episode_index=[number], x=[1])


def test_an_id_that_two_episodes_have_goes_to_neither(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path, "demo", {"train": [[1, 1, 1]]})
    ids = pa.array(["a", "b", "a"], pa.large_string())
    change_table(folder, "episodes", lambda table: table.set_column(2, table.schema.field(2), ids))
    assert label(tmp_path, folder, episode_id=["b"], x=[1]) == [None, 1, None]
    with pytest.raises(ArgumentError, match="1 row whose episode_id several episodes have"):
        label(tmp_path, folder, episode_id=["a"], x=[1])


@pytest.mark.long
def test_of_a_dataset_made_of_two_ids_name_episodes_and_lerobots_numbers_do_not(tmp_path: Path) -> None:
    for name, lengths in {"a": (2, 1), "b": (1, 2)}.items():
        write_numbered(tmp_path / name, lengths=lengths)
        options = ["--datasets", f"lerobot:{tmp_path / name}", "--output", str(tmp_path / f"out_{name}")]
        assert convert([*options, "--layout", "frames", "--num-workers", "1"]) == 0
    parts = "+".join(f"root:{next((tmp_path / f'out_{name}').glob('*'))}" for name in "ab")
    assert convert(["--datasets", parts, "--output", str(tmp_path / "root"), "--num-workers", "1"]) == 0
    (folder,) = (tmp_path / "root").glob("*/*")
    episodes = open_split(folder).episodes
    assert episodes.array("episode_index").tolist() == [0, 1, 0, 1]
    with pytest.raises(ArgumentError, match="1 row whose episode_index several episodes have"):
        label(tmp_path / "root", folder, episode_index=[1], frame_index=[0], x=[1])
    ids = episodes.take_texts("episode_id", np.arange(4))
    assert label(tmp_path / "root", folder, episode_id=ids[1:3], x=[1, 2]) == [None, None, 1, 2, None, None]
    arguments: dict[str, Any] = {"select": {"where": [("x", ">", 0)]}, "frames": [0], "action": 1, "columns": ["x"]}
    weighted = stream.make_loader(tmp_path / "root", folder.parent.name, batch_size=3, sample_weights="x", **arguments)
    batches = [weighted.batch_at(step) for step in range(4)]
    drawn = [(int(n), float(x)) for batch in batches for n, x in zip(batch["episode"], batch["x"], strict=True)]
    assert set(drawn) == {(1, 1.0), (2, 2.0)}
    assert drawn.count((1, 1.0)) == 4 and drawn.count((2, 2.0)) == 8


@pytest.mark.parametrize("name", ["episode", "step", "stop"])
def test_a_key_is_a_whole_number(name: str, tmp_path: Path) -> None:
    folder = write_dataset(tmp_path, "demo", {"train": [[3]]})
    more_keys = {"episode": {}, "step": {"episode": [0]}, "stop": {"episode": [0], "start": [0]}}[name]
    time, large = pa.array([0], pa.timestamp("s")), pa.array([2**63], pa.uint64())
    for keys in ([True], ["0"], [0.5], [float("inf")], time, pa.array([float("nan")]), large, [[0]]):
        with pytest.raises(ArgumentError, match=f"the table: the key '{name}' is .* not every value is a whole number"):
            label(tmp_path, folder, **more_keys, **{name: keys}, x=[1])
        assert not (folder / "train" / "labels").exists()


def test_whole_numbers_of_other_types_are_keys_and_a_row_without_its_key_is_counted_once(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path, "demo", {"train": [[3]]})
    for keys in (pa.array([1.0, 2.0]), pa.array([1, 2], pa.uint8()), pa.array([1, 2]).dictionary_encode()):
        assert label(tmp_path, folder, episode=[0, 0], step=keys, x=[5, 6]) == [None, 5, 6]
    with pytest.raises(ArgumentError) as error:
        label(tmp_path, folder, episode=[None, 0], step=[0, 0], x=[1, 2])
    assert str(error.value).startswith("the table: 1 row without episode (episode None step 0). Dataset demo")


@pytest.mark.parametrize("name", ["episode_id", "episode_index"])
def test_keys_that_name_different_episodes_are_refused_also_where_each_is_one(name: str, tmp_path: Path) -> None:
    folder = write_dataset(tmp_path, "demo", {"train": [[3, 3]]})
    ids = open_split(folder).episodes.take_texts("episode_id", np.arange(2))
    keys: dict[str, Any] = {name: [ids[1] if name == "episode_id" else 1] * 2, "step": [0, 1]}
    with pytest.raises(ArgumentError, match=r"^the table: 1 row whose keys name different episodes \(episode 0"):
        label(tmp_path, folder, episode=[1, 0], **keys, x=[1, 2])
    assert label(tmp_path, folder, episode=[1, 1], **keys, x=[1, 2]) == [None, None, None, 1, 2, None]
