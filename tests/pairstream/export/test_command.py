"""``pairstream export``: what it refuses, what it leaves out, and what it leaves behind."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pairstream.export.command import main
from stream.base.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from tests.fixtures.command import TIMEOUT, flip, is_written, start, wait_until
from tests.stream.index_root import write_dataset

Refused = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Run the command, which has to fail and leave nothing; return its one line."""

    def run(root: Path, *arguments: str, code: int = EXIT_USAGE) -> str:
        output = tmp_path / "new" / "out"
        output.parent.mkdir()
        assert main([str(root), "--output", str(output), *arguments]) == code
        assert list(output.parent.iterdir()) == []
        (line,) = capsys.readouterr().err.splitlines()
        return line

    return run


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``arm`` holds every frame of its first episode only, ``still`` declares no rate, ``odd`` has odd frames."""
    root = tmp_path_factory.mktemp("pairs")
    write_dataset(root, "arm", {"train": [[5, 3]], "test": [[6]]})
    write_dataset(root, "still", {"train": [[5]]}, rate=None)
    write_dataset(root, "odd", {"train": [[5]]}, size=(15, 16))
    return root


IDS = [f"demo-train.tfrecord-00000-of-00001__{number}" for number in range(4)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--dataset dmeo", "no dataset 'dmeo'; did you mean 'demo'?"),
        ("--split val", "no split 'val', there are 'train'"),
        ("--episodes 4", "has no episode 4; its episodes are 0 to 3"),
        ("--split train[:1] --episodes 0:2", "has no episode 1; its episodes are 0 to 0"),
        ("--episodes demo__9", "has no episode 'demo__9'; its ids look like 'demo-train.tf"),
        ("--episodes 3", f"episode 3 ({IDS[3]}) has no steps"),
        (
            f"--episodes {IDS[0]},{IDS[3]}",
            f"episode 3 ({IDS[3]}) has no steps (its status is 'malformed'); leave it out",
        ),
        ("--cameras top", "cameras: no dataset of the mixture stores 'top'; they store base,"),
        ("--fps 7", "--fps 7, but the dataset declares 5; omit --fps"),
        ("--repo-id mine", "--repo-id 'mine': expected ORG/NAME"),
    ],
)
def test_a_wrong_name_is_one_line(arguments: str, message: str, holed: Path, refused: Refused) -> None:
    assert message in refused(holed, "--dataset", "demo", *arguments.split())


def test_pairs_that_lack_frames_name_the_layout_that_has_them(pairs: Path, refused: Refused) -> None:
    message = refused(pairs, "--dataset", "arm")
    assert "dataset arm, split train, episode 1: its pairs hold the frames of 2 of 3 steps" in message
    assert "convert it with `--layout frames`" in message


def test_a_dataset_without_a_rate_needs_fps(pairs: Path, refused: Refused, tmp_path: Path) -> None:
    assert "dataset still: declares no rate" in (message := refused(pairs, "--dataset", "still"))
    assert message.endswith("give the steps per second with --fps")
    assert main([str(pairs), "--dataset", "still", "--fps", "2.5", "--output", str(tmp_path / "out")]) == 0
    assert json.loads((tmp_path / "out/meta/info.json").read_text())["fps"] == 2.5


def test_frames_of_odd_size_are_no_video(pairs: Path, refused: Refused) -> None:
    message = refused(pairs, "--dataset", "odd", "--video")
    assert "frames of camera primary are 15x16, and H.264 needs even numbers; take --images" in message


def test_an_output_that_exists_or_whose_folder_is_missing_is_refused(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    arguments = [str(pairs), "--dataset", "arm", "--episodes", "0", "--output"]
    for output, message in (("out", "exists already; choose another folder, or remove it"), ("a/b", "make it first")):
        assert main([*arguments, f"{tmp_path}/{output}"]) == EXIT_USAGE
        assert message in capsys.readouterr().err
    assert list(tmp_path.rglob("*")) == [tmp_path / "out"]


def test_episodes_by_number_range_id_and_file_are_the_same(holed: Path, tmp_path: Path) -> None:
    ids = IDS[1:3]
    (tmp_path / "ids.txt").write_text("\n".join(ids) + "\n")
    chosen = ["1,2", "1:3", ",".join(ids), str(tmp_path / "ids.txt"), f"1,{ids[1]}"]
    origins = []
    for number, text in enumerate(chosen):
        output = tmp_path / f"out{number}"
        assert main([str(holed), "--dataset", "demo", "--episodes", text, "--output", str(output)]) == 0
        origins.append(json.loads((output / "meta/source.json").read_text()))
    assert [row["episode"] for row in origins[0]["episodes"]] == [1, 2]
    assert origins == [origins[0]] * len(chosen)


def test_a_list_of_ids_may_be_longer_than_the_name_of_a_file(tmp_path: Path) -> None:
    write_dataset(tmp_path / "root", "arm", {"train": [[3] * 20]}, offset=1)
    ids = [f"arm-train.tfrecord-00000-of-00001__{number}" for number in range(0, 20, 2)]
    arguments = ["--dataset", "arm", "--episodes", ", ".join(ids), "--output", str(tmp_path / "out")]
    assert main([str(tmp_path / "root"), *arguments]) == 0
    origin = json.loads((tmp_path / "out/meta/source.json").read_text())
    assert [row["episode_id"] for row in origin["episodes"]] == ids


@pytest.mark.parametrize("listed", [["demo*"], {"leave_out": IDS[:1]}], ids=str)
def test_an_episode_without_steps_that_no_id_names_is_counted(
    listed: Any, holed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "list.json").write_text(json.dumps(listed))
    arguments = ["--episodes", str(tmp_path / "list.json"), "--output", str(tmp_path / "out"), "--json"]
    assert main([str(holed), "--dataset", "demo", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == {"malformed": 1}


def test_the_result_counts_what_was_left_out(holed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(holed), "--dataset", "demo", "--repo-id", "me/demo", "--output", str(tmp_path / "out")]
    assert main([*arguments, "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["episodes"], done["steps"], done["left_out"]) == (3, 18, {"malformed": 1})
    assert (done["repo_id"], done["frames_mask"]) == ("me/demo", "observation.frames_mask")


def test_a_chosen_camera_is_exported_alone_and_without_a_mask_if_complete(holed: Path, tmp_path: Path) -> None:
    chosen = ["--episodes", "0", "--cameras", "wrist", "--split", "train[:1]"]
    assert main([str(holed), "--dataset", "demo", *chosen, "--output", str(tmp_path / "out")]) == 0
    names = pq.read_schema(tmp_path / "out/data/chunk-000/file-000.parquet").names
    observations = [name for name in names if name.startswith("observation.")]
    assert observations == ["observation.state", "observation.images.wrist"]


def test_a_damaged_record_leaves_nothing(tmp_path: Path, refused: Refused) -> None:
    folder = write_dataset(tmp_path / "root", "arm", {"train": [[8]]})
    flip(folder / "train/train-00000-of-00001.arrayrecord", 2_000)
    assert "dataset arm, split train, row" in refused(tmp_path / "root", "--dataset", "arm", code=EXIT_FAILED)


UNENDING = """
import itertools, sys, time
from pairstream.export import command

class Writer(command.LeRobotWriter):
    numbers = itertools.count(1)

    def add(self, *arguments):
        if next(self.numbers) == 10:
            time.sleep(600)
        super().add(*arguments)

command.LeRobotWriter = Writer
sys.exit(command.main())
"""
"""The command, which does not get past its tenth episode."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_an_interrupt_leaves_nothing(number: int, tmp_path: Path) -> None:
    (tmp_path / "unending_export.py").write_text(UNENDING)
    write_dataset(tmp_path / "root", "arm", {"train": [[400] * 10]})
    output = tmp_path / "new" / "out"
    output.parent.mkdir()
    arguments = [str(tmp_path / "root"), "--dataset", "arm", "--video", "--output", str(output)]
    with start(*arguments, module="unending_export", environment={"PYTHONPATH": str(tmp_path)}) as command:
        assert wait_until(lambda: is_written(output.parent, "*.mp4"), seconds=TIMEOUT)
        command.signal(number)
        done = command.wait()
    assert (done.code, done.err.strip()) == (EXIT_INTERRUPTED, "interrupted; nothing was written")
    assert list(output.parent.iterdir()) == []


def test_video_without_pyav_names_the_extra(pairs: Path, tmp_path: Path) -> None:
    (tmp_path / "av.py").write_text("raise ModuleNotFoundError(\"No module named 'av'\", name='av')\n")
    arguments = [str(pairs), "--dataset", "arm", "--episodes", "0", "--video", "--output", str(tmp_path / "out")]
    with start(*arguments, module="pairstream export", environment={"PYTHONPATH": str(tmp_path)}) as command:
        done = command.wait()
    needs = "error: pairstream export --video needs av, which is not installed; install pairstream[lerobot]"
    assert done.code == EXIT_USAGE and done.err.startswith(needs)
    assert not (tmp_path / "out").exists()
