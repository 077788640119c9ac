"""Warnings of a conversion and ``info`` about bad content: NaN, and instructions that say nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convert.doctor.command import examine
from convert.reindex import reindex_root
from convert.run.command import main
from convert.verify.command import main as verify
from pairstream.info.command import main as info
from stream.format.manifest import Manifest, SplitEntry, read_manifest
from tests.fixtures.datasets.numbered_lerobot import CAMERA, LENGTHS, write_numbered, write_tasks


def spoil(folder: Path, column: str, *rows: int, dim: int = 1) -> None:
    """Write NaN into a dimension of a vector at some rows of the dataset."""
    path = folder / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    values = np.array(table[column].to_pylist(), np.float32)
    values[list(rows), dim] = np.nan
    column_number = table.schema.get_field_index(column)
    pq.write_table(table.set_column(column_number, column, pa.array(list(values), pa.list_(pa.float32()))), path)


def convert(folder: Path, out: Path, *more: str, code: int = 0) -> Manifest:
    command = ["--datasets", f"lerobot:{folder}", "--output", str(out), "--num-workers", "1", *more]
    assert main([*command, "--layout", "frames", "--image-size", "native"]) == code
    return read_manifest(next(out.glob("*/*/dataset.json")))


def described(out: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    """Return the JSON of ``info``, and its text."""
    capsys.readouterr()
    assert info([str(out), "--json"]) == info([str(out)]) == 0
    text = capsys.readouterr().out
    (entry,) = json.JSONDecoder().raw_decode(text)[0]["datasets"]
    return entry, text


def test_episodes_with_values_that_are_not_finite_are_counted_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = write_numbered(tmp_path / "robot"), tmp_path / "out"
    spoil(folder, "action", 0, 1, dim=1)
    spoil(folder, "action", LENGTHS[0], dim=2)
    spoil(folder, "observation.state", sum(LENGTHS) - 1)
    manifest = convert(folder, out, "--json")
    printed = capsys.readouterr()
    assert json.loads(printed.out)["complete"][0]["nonfinite_episodes"] == {"action": 2, "state": 1}
    assert "warning: robot: of 3 episodes, NaN or infinity: 2 in the action and 1 in the state" in printed.err
    assert manifest.statistics["train"]["action"].nonfinite == (0, 2, 1)
    entry, text = described(out, capsys)
    assert entry["nonfinite_episodes"] == {"action": 2, "state": 1}
    assert "episodes with NaN or infinity: robot (action 2, state 1); docs/debugging.md says what to do" in text
    # Other commands count them in other ways.
    assert verify([str(out), "--deep"]) == 0
    rules = {finding.rule.name: finding.count for finding in examine(out).findings}
    assert (rules["nonfinite_action"], rules["nonfinite_state"]) == (2, 1)
    assert "statistics_differ" not in rules


def test_a_sound_dataset_has_no_word_about_its_content(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = write_numbered(tmp_path / "robot"), tmp_path / "out"
    manifest = convert(folder, out)
    assert "warning" not in capsys.readouterr().err
    assert (manifest.nonfinite_episodes, manifest.instruction) == ({}, None)
    content = (next(out.glob("*/*/dataset.json"))).read_text()
    assert "nonfinite_episodes" not in content and '"instruction": null' not in content
    entry, text = described(out, capsys)
    assert (entry["nonfinite_episodes"], entry["instruction"]) == ({}, None)
    assert "NaN" not in text and "instruction" not in text.splitlines()[-1]


def test_counts_and_instruction_stay_when_a_dataset_is_reindexed(tmp_path: Path) -> None:
    folder, out = write_numbered(tmp_path / "robot"), tmp_path / "out"
    spoil(folder, "action", 0)
    write_tasks(folder, [{"task_index": number, "task": "valid"} for number in (0, 1)])
    before = convert(folder, out)
    assert reindex_root(str(out))[0]["changed"] == ()
    after = read_manifest(next(out.glob("*/*/dataset.json")))
    assert after == before
    assert (after.nonfinite_episodes, after.instruction) == ({"action": 1}, "valid")


ONE = "one instruction for all episodes: robot ('valid')"
TEXTS: dict[str, tuple[list[str], str | None, str | None, str]] = {
    "a flag": (
        ["valid"] * 2,
        "valid",
        "all 3 episodes have the instruction 'valid'; is instruction: {path: task}",
        ONE,
    ),
    "nothing": (["", " "], "", "no instruction at all; is instruction: {path: task}", "no instruction at all: robot"),
    "some nothing": (["valid", ""], "valid", "all 3 episodes have the instruction 'valid'", ONE),
    "one task": (["open the drawer"] * 2, "open the drawer", None, "robot ('open the drawer')"),
    "two words": (["pick", "place"], None, None, ""),
}


@pytest.mark.parametrize("name", TEXTS)
def test_instructions_that_tell_nothing_are_said(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks, expected, warning, line = TEXTS[name]
    folder, out = write_numbered(tmp_path / "robot"), tmp_path / "out"
    write_tasks(folder, [{"task_index": number, "task": text} for number, text in enumerate(tasks)])
    manifest = convert(folder, out)
    index = manifest.splits["train"].index
    assert manifest.instruction == expected
    error = capsys.readouterr().err
    assert f"warning: robot: {warning}" in error if warning else "warning" not in error
    entry, text = described(out, capsys)
    assert entry["instruction"] == expected
    assert line in text
    splits = {**manifest.splits, "empty": SplitEntry(episodes=1, steps=0, records=0, shards=(), index=index)}
    assert manifest.model_copy(update={"splits": splits}).instruction == expected
    same = any(finding.rule.name == "instruction_same" for finding in examine(out).findings)
    assert same == (name == "a flag")


@pytest.mark.parametrize("codec", ["jpeg", "raw", "h264"])
def test_info_shows_the_codec_of_each_camera(codec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = write_numbered(tmp_path / "robot"), tmp_path / "out"
    convert(folder, out, "--codec", codec)
    entry, text = described(out, capsys)
    (camera,) = entry["cameras"].values()
    assert camera["codec"] == codec
    assert f"{CAMERA.rpartition('.')[2]} 64x64 {codec}" in text


def _drop_frame(folder: Path) -> None:
    """Let one frame of one episode be missing at the end of its video."""
    write_numbered(folder, "v2.1", frames=[[*range(6)], [*range(100, 104)], [*range(200, 207)]])


def _cut_video(folder: Path) -> None:
    write_numbered(folder, "v2.1")
    next(folder.glob("videos/*/*/episode_000001.mp4")).unlink()


@pytest.mark.parametrize(("damage", "counts"), [(_drop_frame, "corrupt frame 1"), (_cut_video, "unreadable 1")])
def test_info_counts_what_was_left_out_as_what_it_is(
    damage: Callable[[Path], None], counts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(tmp_path / "robot")
    convert(tmp_path / "robot", tmp_path / "out", code=3)
    _, text = described(tmp_path / "out", capsys)
    assert f"left out by the conversion: robot ({counts}); quarantine.jsonl of each says why" in text
