"""Outcome of the whole command for kinds of LeRobot datasets that people's reports describe."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convert.errors import EXIT_DAMAGED, EXIT_FAILED
from convert.picture import decode_jpeg
from convert.run.command import main
from stream import make_loader
from stream.adapters import lerobot as lerobot_adapter
from stream.adapters import openpi
from stream.base.errors import ArgumentError
from stream.format.names import HOLE
from tests.fixtures.datasets.converted_dataset import ConvertedDataset, open_converted
from tests.fixtures.datasets.lerobot_dataset import edit_info
from tests.fixtures.datasets.numbered_lerobot import CAMERA, LENGTHS, number_of, numbers, write_numbered

OWN: dict[int, Any] = {episode: numbers(episode, steps) for episode, steps in enumerate(LENGTHS)}
CASES = Path(__file__).resolve().parents[4] / "shared" / "cases"


def convert(folder: Path, out: Path, *more: str) -> int:
    arguments = ["--datasets", f"lerobot:{folder}", "--output", str(out), "--num-workers", "1"]
    return main([*arguments, "--layout", "frames", "--image-size", "native", *more])


def opened(folder: Path, out: Path) -> ConvertedDataset:
    version = next((out / folder.name).iterdir()).name
    return open_converted(out, folder.name, version)


def shown(converted: ConvertedDataset) -> dict[int, list[int | None]]:
    """Return the number that each stored frame shows, None for a hole, by episode."""
    actual: dict[int, list[int | None]] = {}
    episodes = converted.splits["train"].episodes["source_position"].to_pylist()
    for shard in converted.shards:
        for number, row in enumerate(shard.records.to_pylist()):
            missing = row["num_bytes"] == len(HOLE)
            steps = actual.setdefault(episodes[row["episode"]], [])
            steps.append(None if missing else number_of(decode_jpeg(shard.frames(number)[0])))
    return actual


def quarantine(folder: Path, out: Path) -> list[tuple[str, int, int | None]]:
    path = next((out / folder.name).glob("*/quarantine.jsonl"))
    return [(row["reason"], row["episode"], row["step"]) for row in map(json.loads, path.read_text().splitlines())]


def test_a_missing_last_frame_is_a_listed_hole_and_a_frame_too_many_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frames = [[*OWN[0], 999], OWN[1][:-1], OWN[2]]
    folder = write_numbered(tmp_path / "robot", "v2.1", frames=frames)
    assert convert(folder, tmp_path / "out") == EXIT_DAMAGED
    assert shown(opened(folder, tmp_path / "out")) == {**OWN, 1: [*OWN[1][:-1], None]}
    assert quarantine(folder, tmp_path / "out") == [("spare_frames", 0, None), ("corrupt_frame", 1, 4)]
    message = capsys.readouterr().err
    assert "Mend the source and run the same command" in message
    assert "Copy" not in message


@pytest.mark.parametrize("moved", ["videos", "data"])
def test_a_dataset_without_its_files_is_a_failure_that_names_the_folder_there(
    moved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_numbered(tmp_path / "robot")
    (folder / moved).rename(folder / f"{moved}2")
    assert convert(folder, tmp_path / "out") == EXIT_FAILED
    message = capsys.readouterr().err
    assert "error: robot: nothing could be converted, as all is damaged (unreadable 3), such as episode 0: " in message
    assert f"missing, as the dataset has no folder {moved}; did you mean '{moved}2'" in message
    assert "complete" not in message
    with pytest.raises(ArgumentError, match=r"dataset robot: nothing of it was converted \(3 unreadable\); see quaran"):
        make_loader(tmp_path / "out", "robot", batch_size=2)
    (folder / f"{moved}2").rename(folder / moved)
    assert convert(folder, tmp_path / "out") == 0
    assert shown(opened(folder, tmp_path / "out")) == OWN


def test_videos_that_no_decoder_reads_are_a_failure_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_numbered(tmp_path / "robot", "v2.1")
    for path in folder.glob("videos/**/*.mp4"):
        path.write_bytes(b"no video")
    assert convert(folder, tmp_path / "out") == EXIT_FAILED
    assert "cannot be read as a video" in capsys.readouterr().err


def test_a_part_of_the_files_is_damage_that_a_copy_mends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_numbered(tmp_path / "robot", "v2.1")
    (folder / f"videos/chunk-000/{CAMERA}/episode_000001.mp4").unlink()
    assert convert(folder, tmp_path / "out") == EXIT_DAMAGED
    assert "Copy the damaged files again and run the same command" in capsys.readouterr().err


def test_actions_of_openpis_converters_reach_the_adapters_which_refuse_a_dataset_without(tmp_path: Path) -> None:
    for name, keys in (("named", ("actions", "state")), ("other", ("command", "joints"))):
        assert convert(write_numbered(tmp_path / name, keys=keys), tmp_path / "out") == 0
    sample = openpi.sample(action_horizon=2, cameras={"base_0_rgb": "primary"}, normalize=False)
    batch = make_loader(tmp_path / "out", "named", batch_size=4, **sample).batch_at(0)
    assert batch["state"][:, :2].any() and batch["actions"][..., :3].any()
    for trainer_sample in (sample, lerobot_adapter.sample()):
        with pytest.raises(ArgumentError, match=r"action: other have none, and this trainer would learn zeros"):
            make_loader(tmp_path / "out", "other", batch_size=4, **trainer_sample)


def test_a_dry_run_counts_frames_exactly_and_names_missing_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_numbered(tmp_path / "robot", "v2.1", lengths=(3, 50, 7, 11, 20, 9, 8, 7, 30, 40))
    path = folder / f"videos/chunk-000/{CAMERA}/episode_000008.mp4"
    path.unlink()
    edit_info(folder, lambda info: info.update(splits={"train": "0:99"}))
    assert convert(folder, tmp_path / "out", "--dry-run", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["estimated_frames"], row["episodes"]) == (185, 10)
    assert row["understood"][-3:] == [
        "tasks: 'pick up the cup', 'open the drawer'",
        "splits: {'train': '0:99'} does not fit, so all are train",
        f"files missing: 1 of 20: {path.relative_to(folder)}",
    ]
    assert convert(folder, tmp_path / "out", "--dry-run", "--episodes", "train[:2]") == 0
    assert " 53 " in capsys.readouterr().out


def test_several_instructions_of_a_step_are_one_and_all_stay_a_column(tmp_path: Path) -> None:
    folder = write_numbered(tmp_path / "robot")
    edit_info(folder, lambda info: info["features"].update(texts={"dtype": "string", "shape": [2]}))
    path = folder / "data/chunk-000/file-000.parquet"
    rows = pq.read_table(path)
    pq.write_table(rows.append_column("texts", pa.array([["", "say this"], ["or that", ""]] * (len(rows) // 2))), path)
    declared = "source: 'lerobot:org/robot', instruction: {path: texts}"
    (tmp_path / "mine.yaml").write_text(f"datasets: {{robot: {{{declared}}}}}")
    assert convert(folder, tmp_path / "out", "--config", str(tmp_path / "mine.yaml")) == 0
    steps = opened(folder, tmp_path / "out").splits["train"].steps
    assert steps["language"].to_pylist()[:3] == ["say this", "or that", "say this"]
    assert steps["texts"].to_pylist()[0] == ["", "say this"]


class Case(NamedTuple):
    """Outcome of one of the shared cases.

    Attributes:
        lengths: Length of each episode.
        code: Exit code.
        hole: Episode and step without a frame.
        lost: Episodes that are left out.
        says: Text of the messages.
        check: A further check.
    """

    lengths: tuple[int, ...] = LENGTHS
    code: int = 0
    hole: tuple[int, int] | None = None
    lost: tuple[int, ...] = ()
    says: str = ""
    check: Callable[[Path, ConvertedDataset], object] = lambda out, converted: None
    argument: str = ""


def has_names(out: Path, converted: ConvertedDataset) -> None:
    loader = make_loader(out, converted.manifest.dataset, batch_size=2)
    assert loader.action_names[converted.manifest.dataset] == ("x", "y", "g")


def has_vectors(out: Path, converted: ConvertedDataset) -> None:
    batch = make_loader(out, converted.manifest.dataset, batch_size=2).batch_at(0)
    assert (batch["action"].shape[-1], batch["state"].shape[-1]) == (3, 2)


def has_text(out: Path, converted: ConvertedDataset) -> None:
    assert converted.splits["train"].steps["language"][0].as_py() == "pick up\u2028the cup"


SHARED: dict[str, Case] = {
    "rate": Case((40, 30, 50)),
    "times_zero": Case((20, 10, 10)),
    "times_not_from_zero": Case((60, 50, 40)),
    "times_not_from_zero late": Case((60, 50, 40), argument="late"),
    "last_frame": Case(code=EXIT_DAMAGED, hole=(1, 4)),
    "openpi_keys": Case(check=has_vectors),
    "v20": Case(),
    "splits": Case(),
    "splits small": Case(argument="small"),
    "nested_names": Case(check=has_names),
    "line_separator": Case(check=has_text),
    "no_episode_left": Case(code=EXIT_FAILED, lost=(0, 1, 2), says="no folder videos; did you mean 'video'"),
    "no_video_of_one": Case(code=EXIT_DAMAGED, lost=(1,)),
    "lfs_pointer": Case(code=EXIT_DAMAGED, lost=(1, 2)),
}


@pytest.mark.long
@pytest.mark.skipif(not CASES.is_dir(), reason="the shared cases are not beside this repository")
@pytest.mark.parametrize("name", SHARED)
def test_a_shared_case_ends_as_its_first_lines_say(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    case = SHARED[name]
    folder = tmp_path / "robot"
    script = CASES / f"case_{name.split()[0]}.py"
    subprocess.run([sys.executable, str(script), str(folder), *case.argument.split()], check=True)
    assert convert(folder, tmp_path / "out") == case.code
    assert case.says in capfd.readouterr().err
    if case.code == EXIT_FAILED:
        return
    converted = opened(folder, tmp_path / "out")
    assert shown(converted) == {
        episode: [None if (episode, step) == case.hole else 256 * episode + step for step in range(steps)]
        for episode, steps in enumerate(case.lengths)
        if episode not in case.lost
    }
    case.check(tmp_path / "out", converted)
    listed = (next((tmp_path / "out/robot").iterdir()) / "quarantine.jsonl").read_text() if case.code else ""
    assert listed.count("a pointer of Git LFS") == (2 if name == "lfs_pointer" else 0)
