"""``--episodes FILE``: lists of the episodes to convert."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from convert.errors import EXIT_USAGE
from stream import Select, make_loader
from tests.fixtures.command import run

ONE = "bridge-train.tfrecord-00000-of-00002__1"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lists") / "source"
    size = ("--episodes", "4", "--steps", "8", "--jobs", "1")
    done = run("--datasets", "bridge,droid", "--output", str(folder), *size, module="pairstream sample")
    assert done.code == 0, done.err
    return folder


def convert(source: Path, output: Path, lists: dict[str, Any], *more: str) -> Any:
    output.parent.mkdir(exist_ok=True)
    file = output.parent / "lists.json"
    file.write_text(json.dumps(lists))
    arguments = ("--source", str(source), "--output", str(output), "--image-size", "64", "--num-workers", "1")
    return run("--datasets", ",".join(lists), *arguments, "--episodes", f"train:{file}", *more, module="convert.run")


def ids(output: Path, dataset: str) -> list[str]:
    (table,) = (output / dataset).glob("*/train/episodes.arrow")
    column: list[str] = pa.ipc.open_file(table).read_all()["episode_id"].to_pylist()
    return column


@pytest.mark.long
@pytest.mark.parametrize("layout", [pytest.param("pairs", marks=pytest.mark.long), "frames"])
def test_listed_episodes_alone_are_converted(source: Path, tmp_path: Path, layout: str) -> None:
    lists: dict[str, Any] = {"bridge": [ONE], "droid": {"leave_out": ["*/failure/*"]}}
    done = convert(source, tmp_path / "out", lists, "--layout", layout)
    assert done.code == 0, done.err
    assert "not chosen 1" in done.out
    assert ids(tmp_path / "out", "bridge") == [ONE]
    # One of the sample's droid episodes failed.
    assert [name.rpartition("__")[2] for name in ids(tmp_path / "out", "droid")] == ["0", "1", "1"]
    assert run(str(tmp_path / "out"), "--deep", module="pairstream verify").code == 0
    repeated = convert(source, tmp_path / "out", lists, "--layout", layout)
    assert repeated.code == 0
    assert "2 of 2 were complete already" in repeated.out


@pytest.mark.long
def test_failed_episodes_are_filtered_by_the_column_that_their_path_gives(source: Path, tmp_path: Path) -> None:
    done = run(
        *("--datasets", "droid", "--source", str(source), "--output", str(tmp_path), "--image-size", "64"),
        *("--layout", "frames", "--num-workers", "1"),
        module="convert.run",
    )
    assert done.code == 0, done.err
    (table,) = (tmp_path / "droid").glob("*/train/episodes.arrow")
    assert pa.ipc.open_file(table).read_all()["success"].to_pylist() == [True, True, False, True]
    for success, count in ((True, 3), (False, 1)):
        loader = make_loader(
            tmp_path, "droid", batch_size=4, frames=(0,), select=Select(where=[("success", "==", success)])
        )
        assert loader.sizes == {"droid": 8 * count}


@pytest.mark.long
def test_another_list_is_another_conversion(source: Path, tmp_path: Path) -> None:
    assert convert(source, tmp_path / "out", {"bridge": [ONE]}).code == 0
    second = convert(source, tmp_path / "out", {"bridge": {"leave_out": [ONE]}})
    assert second.code == EXIT_USAGE
    assert "other parameters: episodes was 'keep 1 names" in second.err


@pytest.mark.long
@pytest.mark.parametrize(
    ("lists", "code", "message"),
    [
        ({"bridge": ["*nowhere*"]}, 1, "the list of --episodes leaves nothing; change it, or leave the split out"),
        ({"bridge": [ONE, f"{ONE}9"]}, 2, f"bridge: --episodes: no episode '{ONE}9'; did you mean '{ONE}'"),
        ({"bridge": {"leave_out": ["a", "b"]}}, 2, "no episode 'a' (2 such names); episodes there: bridge-"),
        ({"bridge": []}, 2, "expected a list of texts, the ids of episodes"),
        ({"bridge": {"drop": ["a"]}}, 2, "expected `keep` or `leave_out`"),
    ],
)
def test_a_list_with_a_fault_is_one_clear_error(
    source: Path, tmp_path: Path, lists: dict[str, Any], code: int, message: str
) -> None:
    done = convert(source, tmp_path / "out", lists)
    assert done.code == code
    assert message in done.err


def test_a_list_of_another_dataset_names_the_closest(source: Path, tmp_path: Path) -> None:
    (tmp_path / "lists.json").write_text('{"brigde": ["a"]}')
    arguments = ("--source", str(source), "--output", str(tmp_path / "out"))
    done = run("--datasets", "bridge", *arguments, "--episodes", str(tmp_path / "lists.json"), module="convert.run")
    assert done.code == EXIT_USAGE
    assert "no member 'brigde'; did you mean 'bridge'" in done.err
