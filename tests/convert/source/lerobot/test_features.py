"""Features of LeRobot datasets: values, tasks, colours, and names of files and columns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from av.video.reformatter import Colorspace, VideoReformatter

from convert.errors import DamagedEpisode, MalformedEpisode, SourceError
from convert.run.command import main
from convert.source.episode import Episode
from convert.source.lerobot.video import VideoFile
from tests.convert.source.lerobot.reading import find, read_episodes
from tests.fixtures.datasets.converted_dataset import open_converted
from tests.fixtures.datasets.lerobot_dataset import edit_info
from tests.fixtures.datasets.numbered_lerobot import (
    CAMERA,
    LENGTHS,
    numbers,
    shown_numbers,
    write_numbered,
    write_rows,
    write_tasks,
)

DESCRIPTION, VALIDITY = "annotation.human.action.task_description", "annotation.human.validity"
TEXTS = ["pick up the cup", "open the drawer", "valid"]


def add_columns(folder: Path, columns: Mapping[str, pa.Array], shapes: Mapping[str, list[int]] | None = None) -> None:
    """Add features of a shape of one number, or another, to a dataset of one parquet file."""
    path = folder / "data/chunk-000/file-000.parquet"
    rows = pq.read_table(path)
    for name, values in columns.items():
        shape, kind = (shapes or {}).get(name, [1]), values.type
        dtype = "float32" if pa.types.is_list(kind) else str(kind)
        added = {name: {"dtype": dtype, "shape": shape, "names": None}}
        edit_info(folder, lambda info, added=added: info["features"].update(added))  # type: ignore[misc]
        rows = rows.append_column(name, values)
    pq.write_table(rows, path)


def annotate(folder: Path, texts: list[int] | None = None) -> Path:
    """Write a dataset as GR00T's: each episode its text, and the same task for all."""
    write_numbered(folder)
    write_tasks(folder, [{"task_index": number, "task": text} for number, text in enumerate(TEXTS)])
    path = folder / "data/chunk-000/file-000.parquet"
    rows = pq.read_table(path)
    position = rows.schema.get_field_index("task_index")
    pq.write_table(rows.set_column(position, "task_index", pa.array([2] * len(rows), pa.int64())), path)
    texts = texts or [episode % 2 for episode, steps in enumerate(LENGTHS) for _ in range(steps)]
    valid = pa.array([2] * sum(LENGTHS), pa.int64())
    add_columns(folder, {VALIDITY: valid, DESCRIPTION: pa.array(texts, pa.int64())})
    return folder


def read(folder: Path) -> list[Episode | DamagedEpisode]:
    return [content for _, content in read_episodes(find(folder), pictures=False)]


def test_annotations_are_the_texts_of_their_numbers_and_the_one_that_describes_is_the_instruction(
    tmp_path: Path,
) -> None:
    folder = annotate(tmp_path / "robot")
    assert main([*("--datasets", f"lerobot:{folder}"), "--output", str(tmp_path / "out"), "--num-workers", "1"]) == 0
    steps = open_converted(tmp_path / "out", "robot", "3.0.0").splits["train"].steps
    expected = [TEXTS[episode % 2] for episode, count in enumerate(LENGTHS) for _ in range(count)]
    assert steps["language"].to_pylist() == steps[DESCRIPTION].to_pylist() == expected
    assert steps[VALIDITY].to_pylist() == steps["task"].to_pylist() == ["valid"] * sum(LENGTHS)


@pytest.mark.parametrize(
    ("names", "instruction"),
    [
        (["fine.coarse_action", "action.task_description", "other.task_description"], DESCRIPTION),
        (["validity"], "task"),
    ],
)
def test_the_instruction_is_the_annotation_that_describes_most_or_else_the_task(
    names: list[str], instruction: str, tmp_path: Path
) -> None:
    write_numbered(tmp_path)
    numbered = pa.array([0] * sum(LENGTHS), pa.int64())
    add_columns(tmp_path, {f"annotation.human.{name}": numbered for name in names})
    assert find(tmp_path).entry["instruction"] == {"path": instruction}


def test_tasks_are_found_by_their_number_and_not_by_their_line(tmp_path: Path) -> None:
    folder = write_numbered(tmp_path)
    write_tasks(folder, [{"task_index": number, "task": f"task {number}"} for number in (7, 1, 0)])
    texts = [set(item.steps["task"].values or ()) for item in read(folder) if isinstance(item, Episode)]
    assert texts == [{"task 0"}, {"task 1"}, {"task 0"}]


def test_a_step_without_an_annotation_has_an_empty_text_and_an_unknown_number_is_damage(tmp_path: Path) -> None:
    first, second, last = read(annotate(tmp_path, texts=[-1, *[0] * (sum(LENGTHS) - 2), 9]))
    assert isinstance(first, Episode) and isinstance(second, Episode) and isinstance(last, MalformedEpisode)
    assert first.steps[DESCRIPTION].values == ["", *[TEXTS[0]] * (LENGTHS[0] - 1)]
    assert str(last).endswith(f"episode 2 has {DESCRIPTION} 9, which meta/tasks lacks")


def test_a_feature_without_values_is_no_column_and_no_part_of_a_vector(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_numbered(tmp_path / "robot", keys=("actions.joint.position", "observation.states.joint.position"))
    empty = pa.array([[]] * sum(LENGTHS), pa.list_(pa.float32()))
    names = ("observation.states.head.velocity", "actions.waist.velocity", "note")
    add_columns(folder, dict.fromkeys(names, empty), {name: [0] for name in names})
    command = ["--datasets", f"lerobot:{folder}", "--output", str(tmp_path / "out"), "--num-workers", "1"]
    assert main([*command, "--dry-run"]) == 0
    assert f"robot: not converted: {', '.join(names)} (no values)" in capsys.readouterr().out
    assert main(command) == 0
    converted = open_converted(tmp_path / "out", "robot", "3.0.0")
    assert set(names).isdisjoint(converted.splits["train"].steps.column_names)
    assert len(converted.splits["train"].steps["action"][0].as_py()) == 3


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
@pytest.mark.parametrize("lists", [False, True], ids=["without a list", "with an empty list"])
def test_a_dataset_that_nothing_was_recorded_into_is_one_sentence(tmp_path: Path, version: str, lists: bool) -> None:
    write_numbered(tmp_path, version, lengths=(1,))
    edit_info(tmp_path, lambda info: info.update(total_episodes=0, total_frames=0, splits={}))
    (listed,) = [*tmp_path.glob("meta/episodes.jsonl"), *tmp_path.glob("meta/episodes/*/*.parquet")]
    if not lists:
        listed.unlink()
    elif version == "v2.1":
        write_rows(tmp_path, [])
    else:
        pq.write_table(pq.read_table(listed).slice(0, 0), listed)
    with pytest.raises(SourceError, match=r"has no episodes, meta/info.json counts 0; record some, or name another da"):
        find(tmp_path)


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_an_empty_first_episode_leaves_the_others_as_they_are(tmp_path: Path, version: str) -> None:
    lengths = (0, 5, 7)
    write_numbered(tmp_path, version, lengths=lengths)
    assert shown_numbers(tmp_path) == {episode: numbers(episode, steps) for episode, steps in enumerate(lengths)}


COLOURS = ((200, 40, 40), (40, 180, 60), (30, 60, 190), (220, 200, 30), (128, 128, 128), (240, 240, 240))
BT709, BT601 = 1, 6
"""Numbers of the matrices in ITU-T H.273."""
OWN = {BT709: Colorspace.ITU709, BT601: Colorspace.ITU601}


@pytest.mark.parametrize("matrix", [BT709, BT601], ids=["BT.709", "BT.601"])
def test_colours_are_decoded_with_the_matrix_that_the_video_names(matrix: int, tmp_path: Path) -> None:
    with av.open(str(tmp_path / "video.mp4"), "w") as out:
        stream: Any = out.add_stream("libx264", rate=10, options={"crf": "4"})
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        context = stream.codec_context
        context.colorspace = context.color_primaries = context.color_trc = matrix
        context.color_range = 1
        for colour in COLOURS:
            pixels = np.broadcast_to(np.array(colour, np.uint8), (64, 64, 3)).copy()
            filmed = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            out.mux(stream.encode(VideoReformatter().reformat(filmed, format="yuv420p", dst_colorspace=OWN[matrix])))
        out.mux(stream.encode())
    video = VideoFile(tmp_path / "video.mp4", name="video.mp4")
    for colour, frame in zip(COLOURS, video.frames(np.arange(len(COLOURS))), strict=True):
        assert np.abs(np.asarray(frame)[32, 32].astype(int) - colour).max() <= 6, (colour, np.asarray(frame)[32, 32])
    video.close()


NAMES = {"my robot": "my_robot", "été": "t_", "-dash": "dash", "a,b": "a_b", "50%": "50_", "a@b": "a_b"}
"""Names of datasets by those of their folders."""


def convert(dataset: str, out: Path, *more: str) -> int:
    command = ["--datasets", dataset, "--output", str(out), "--num-workers", "1", *more]
    return main([*command, "--layout", "frames", "--image-size", "native"])


def check(out: Path, name: str) -> None:
    assert open_converted(out, name, "3.0.0").manifest.records == sum(LENGTHS)


@pytest.mark.parametrize("folder", NAMES)
def test_a_folder_of_any_name_is_a_dataset(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_numbered(tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    for number, dataset in enumerate((f"lerobot:{tmp_path / folder}", f"lerobot:./{folder}")):
        if "," in folder:
            (tmp_path / "own.yaml").write_text(f'datasets: {{a_b: {{source: "{dataset}"}}}}')
            dataset = "own.yaml"
        assert convert(dataset, tmp_path / f"out{number}") == 0
        check(tmp_path / f"out{number}", NAMES[folder])
    if "," not in folder:
        assert convert(f"lerobot:{folder}", tmp_path / "below", "--source", str(tmp_path)) == 0
        check(tmp_path / "below", NAMES[folder])


def test_files_of_any_name_are_those_of_the_pattern(tmp_path: Path) -> None:
    folder = write_numbered(tmp_path / "robot")
    for top, ending in (("data", "parquet"), (f"videos/{CAMERA}", "mp4")):
        (folder / top / "chunk-000").rename(folder / top / "-chunk 000")
        (folder / top / f"-chunk 000/file-000.{ending}").rename(folder / top / f"-chunk 000/-é 000.{ending}")
    position = "-chunk {chunk_index:03d}/-é {file_index:03d}"
    paths = {"data_path": f"data/{position}.parquet", "video_path": f"videos/{{video_key}}/{position}.mp4"}
    edit_info(folder, lambda info: info.update(paths))
    assert convert(f"lerobot:{folder}", tmp_path / "out") == 0
    check(tmp_path / "out", "robot")


@pytest.mark.parametrize(
    "location",
    [
        *("", "data", "videos", "meta", "meta/episodes/chunk-000", f"videos/{CAMERA}"),
        *("data/chunk-000/file-000.parquet", "meta/info.json", "meta/episodes/chunk-000/file-000.parquet"),
        f"videos/{CAMERA}/chunk-000/file-000.mp4",
    ],
)
def test_a_part_of_a_dataset_may_be_a_symbolic_link(location: str, tmp_path: Path) -> None:
    folder = write_numbered(tmp_path / "robot")
    part = folder / location if location else folder
    part.rename(tmp_path / "elsewhere")
    part.symlink_to(tmp_path / "elsewhere")
    assert convert(f"lerobot:{folder}", tmp_path / "out") == 0
    check(tmp_path / "out", "robot")
