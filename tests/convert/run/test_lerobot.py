"""LeRobot datasets are converted by the same command, with the same outcomes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from convert.doctor.command import main as doctor
from convert.errors import EXIT_DAMAGED, EXIT_USAGE
from convert.picture import decode_jpeg
from convert.reindex import main as reindex
from convert.run.command import main
from convert.verify.command import main as verify
from pairstream.fetch import main as fetch
from stream.format.names import HOLE
from tests.fixtures.command import tree
from tests.fixtures.datasets.converted_dataset import open_converted
from tests.fixtures.datasets.lerobot_dataset import (
    CODECS,
    DATA,
    NAMES,
    copy_dataset,
    decoded_frames,
    encode_again,
    expected,
)
from tests.fixtures.datasets.rlds_dataset import demo_episode, write_dataset
from tests.fixtures.object_stores import object_store, objects, upload_tree
from tests.fixtures.parameters import long_but

FRAMES = ("--layout", "frames", "--cameras", "all", "--image-size", "native")
VERSIONS = {"v3_av1": "3.0.0", "v3_images": "3.0.0", "v21_av1": "2.1.0"}
WRIST = "videos/observation.images.left_wrist/chunk-000/file-001.mp4"


def arguments(name: str, source: Path | str, output: Path | str, *more: str) -> list[str]:
    arguments = ["--source", str(source), "--output", str(output), "--num-workers", "1"]
    return ["--datasets", f"lerobot:demo/{name}", *arguments, *more]


def quarantine(output: Path) -> list[tuple[str, int, int | None]]:
    text = (output / "demo_v3_av1" / "3.0.0" / "quarantine.jsonl").read_text()
    return [(row["reason"], row["episode"], row["step"]) for row in map(json.loads, text.splitlines())]


def noise_ratio(actual: np.ndarray, reference: np.ndarray) -> float:
    """PSNR in dB."""
    error = float(np.mean((actual.astype(np.float64) - reference) ** 2))
    return 10 * np.log10(255**2 / error) if error else np.inf


@pytest.mark.parametrize("name", NAMES)
def test_values_and_frames_of_the_index_are_those_of_lerobots_reader(name: str, tmp_path: Path) -> None:
    assert main(arguments(name, DATA, tmp_path, *FRAMES)) == 0
    converted = open_converted(tmp_path, f"demo_{name}", VERSIONS[name])
    reference = expected(name)
    steps = converted.splits["train"].steps
    assert steps["language"].to_pylist() == reference["task"].tolist()
    for column, key in (("action", "action"), ("state", "observation.state"), ("timestamp", "timestamp")):
        np.testing.assert_array_equal(np.stack(steps[column].to_numpy()), reference[key])
    cameras = [key for key in reference if "image" in key]
    assert converted.manifest.records == steps.num_rows * len(cameras)
    records = converted.splits["train"].records
    frames = [shard.frames(number)[0] for shard in converted.shards for number in range(shard.records.num_rows)]
    for camera, row, frame in zip(records["camera"].to_pylist(), records["steps_row"].to_pylist(), frames, strict=True):
        # Their background moves slowly, their bars have sharp edges of pure colours, which 4:2:0 blurs.
        assert noise_ratio(decode_jpeg(frame), reference[cameras[camera]][row]) > 29


@pytest.mark.parametrize("codec", long_but(["h264"], CODECS))
def test_other_codecs_give_the_same_number_of_frames_of_theirs(codec: str, tmp_path: Path) -> None:
    folder = copy_dataset("v3_av1", tmp_path / "source", codec=codec)
    assert main(arguments("v3_av1", tmp_path / "source", tmp_path / "out", *FRAMES)) == 0
    reference = decoded_frames(folder)
    for shard in open_converted(tmp_path / "out", "demo_v3_av1", "3.0.0").shards:
        for number, row in enumerate(shard.records.to_pylist()):
            camera = list(reference)[row["camera"]]
            decoded = decode_jpeg(shard.frames(number)[0])
            assert noise_ratio(decoded, reference[camera][row["episode"]][row["step"]]) > 29


@pytest.mark.parametrize("name", NAMES)
def test_pairs_are_two_frames_of_the_primary_camera(name: str, tmp_path: Path) -> None:
    assert main(arguments(name, DATA, tmp_path, "--image-size", "native", "--offset", "3")) == 0
    converted = open_converted(tmp_path, f"demo_{name}", VERSIONS[name])
    reference = next(values for key, values in expected(name).items() if "image" in key)
    pairs = list(converted.pairs)
    assert len(pairs) == sum(
        max(length - 3, 0) for length in converted.splits["train"].episodes["num_steps"].to_pylist()
    )
    for pair in pairs:
        for step, frame in zip((pair.steps_row, pair.steps_row + 3), pair.frames, strict=True):
            assert noise_ratio(decode_jpeg(frame), reference[step]) > 29


@pytest.mark.long
def test_verify_doctor_and_reindex_find_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in NAMES:
        assert main(arguments(name, DATA, tmp_path, *FRAMES)) == 0
    before = tree(tmp_path)
    assert verify([str(tmp_path), "--deep"]) == 0
    assert doctor([str(tmp_path)]) == 0
    assert reindex([str(tmp_path)]) == 0
    assert "unchanged" in capsys.readouterr().out
    assert tree(tmp_path) == before


def test_a_dry_run_says_what_it_understood(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments("v3_av1", DATA, tmp_path, "--dry-run")) == 0
    actual = capsys.readouterr().out
    for line in (
        "cameras: front (primary, 48x64), left_wrist (wrist, 32x48)",
        "robot: so101, 10 Hz",
        "action: x, y, gripper",
        "episodes: train (7)",
        "format: v3.0, 54 steps, video (av1)",
        "tasks: 'pick up the red cube', 'push the button', 'open the drawer'",
    ):
        assert f"demo_v3_av1: {line}\n" in actual
    assert list(tmp_path.iterdir()) == []


def write_config(path: Path, **fields: object) -> str:
    path.write_text(yaml.safe_dump({"datasets": {"demo_v3_av1": {"source": "lerobot:demo/v3_av1", **fields}}}))
    return str(path)


def test_a_config_replaces_what_the_dataset_says_and_reindex_follows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(
        tmp_path / "mine.yaml",
        cameras={"front": {"role": "secondary"}, "left_wrist": {"role": "primary"}},
        action=[{"path": "action", "dims": 2, "select": [0, 1], "quantity": "ee_position", "kind": "displacement"}],
    )
    out = tmp_path / "out"
    assert main(arguments("v3_av1", DATA, out, "--config", config, "--offset", "1")) == 0
    converted = open_converted(out, "demo_v3_av1", "3.0.0")
    assert converted.manifest.image["sizes"] == {"256x256": 54}
    assert converted.manifest.parameters["camera"] == "observation.images.left_wrist"
    assert len(converted.splits["train"].steps["action"][0].as_py()) == 2
    second = write_config(
        tmp_path / "other.yaml", action=[{"path": "action", "dims": 3, "quantity": "ee_position", "kind": "absolute"}]
    )
    assert reindex([str(out), "--config", second]) == 0
    assert "action" in capsys.readouterr().out
    assert len(open_converted(out, "demo_v3_av1", "3.0.0").splits["train"].steps["action"][0].as_py()) == 3
    assert main(arguments("v3_av1", DATA, out, "--config", write_config(tmp_path / "w.yaml", camers={}))) == EXIT_USAGE
    assert "unknown key 'camers'; did you mean 'cameras'" in capsys.readouterr().err


def test_a_mixture_has_members_of_both_kinds(tmp_path: Path) -> None:
    rlds = write_dataset(tmp_path / "rlds", splits={"train": [[demo_episode(7)]]})
    mixture = {"description": "Both.", "members": {"demo": 1, "demo_v3_av1": {"weight": 2, "offset": 3}}}
    (tmp_path / "both.yaml").write_text(yaml.safe_dump(mixture))
    config = write_config(tmp_path / "mine.yaml")
    arguments = ["--source", str(rlds.root), "--source", str(DATA), "--output", str(tmp_path / "out")]
    configs = ["--config", str(rlds.registry()), "--config", config]
    assert main(["--datasets", str(tmp_path / "both.yaml"), *arguments, *configs, "--num-workers", "1"]) == 0
    assert open_converted(tmp_path / "out", "demo", "1.0.0").manifest.records == 5
    assert open_converted(tmp_path / "out", "demo_v3_av1", "3.0.0").manifest.parameters["offset"] == 3


def test_episodes_are_chosen_in_the_grammar_of_tfds(tmp_path: Path) -> None:
    assert main(arguments("v3_av1", DATA, tmp_path, *FRAMES, "--episodes", "train[1:4]+train[6:]")) == 0
    converted = open_converted(tmp_path, "demo_v3_av1", "3.0.0")
    episodes = converted.splits["train"].episodes
    assert episodes["source_position"].to_pylist() == episodes["episode_index"].to_pylist() == [1, 2, 3, 6]


@pytest.mark.long
def test_damage_is_left_out_and_listed_and_a_repaired_file_converted_again(tmp_path: Path) -> None:
    folder = copy_dataset("v3_av1", tmp_path / "source")
    command = arguments("v3_av1", tmp_path / "source", tmp_path / "out", *FRAMES)
    assert main([*arguments("v3_av1", tmp_path / "source", tmp_path / "whole", *FRAMES)]) == 0
    complete_bytes = (folder / WRIST).read_bytes()
    encode_again(folder / WRIST, codec="libx264", keep=lambda number: number < 20)
    parquet = folder / "data/chunk-000/file-000.parquet"
    parquet.rename(tmp_path / "kept")
    assert main(command) == EXIT_DAMAGED
    assert quarantine(tmp_path / "out") == [
        ("unreadable", 0, None),
        ("unreadable", 1, None),
        # The rows of three episodes, of which one frame or another is missing.
        ("missing_camera", 3, None),
        ("missing_camera", 4, None),
        ("missing_camera", 5, None),
    ]
    assert verify([str(tmp_path / "out")]) == 0
    (folder / WRIST).write_bytes(complete_bytes)
    (tmp_path / "kept").rename(parquet)
    assert main(command) == 0
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_damage_in_values_is_left_out_and_the_rest_converted(tmp_path: Path) -> None:
    folder = copy_dataset("v3_av1", tmp_path / "source")
    for file, column, value in (("000", "timestamp", float("nan")), ("001", "episode_index", None)):
        path = folder / f"data/chunk-000/file-{file}.parquet"
        rows = pq.read_table(path)
        values = rows.column(column).to_pylist()
        values[0] = value
        position = rows.schema.get_field_index(column)
        pq.write_table(rows.set_column(position, column, pa.array(values, rows.schema.types[position])), path)
    assert main(arguments("v3_av1", tmp_path / "source", tmp_path / "out", *FRAMES)) == EXIT_DAMAGED
    assert quarantine(tmp_path / "out") == [("malformed", number, None) for number in (0, 2, 3)]
    assert open_converted(tmp_path / "out", "demo_v3_av1", "3.0.0").splits["train"].steps.num_rows > 20


def test_unusual_but_healthy_features_are_converted(tmp_path: Path) -> None:
    folder = copy_dataset("v3_av1", tmp_path / "source")
    info = json.loads((folder / "meta/info.json").read_text())
    info["features"]["note"] = {"dtype": "string", "shape": [2]}
    info["features"]["action_"] = {"dtype": "float32", "shape": [1]}
    (folder / "meta/info.json").write_text(json.dumps(info))
    for path in folder.glob("data/**/*.parquet"):
        rows = pq.read_table(path)
        rows = rows.append_column("note", pa.array([["a", "b"]] * len(rows)))
        pq.write_table(rows.append_column("action_", pa.array([1.0] * len(rows), pa.float32())), path)
    assert main(arguments("v3_av1", tmp_path / "source", tmp_path / "out", *FRAMES)) == 0
    steps = open_converted(tmp_path / "out", "demo_v3_av1", "3.0.0").splits["train"].steps
    assert steps["note"].to_pylist() == [["a", "b"]] * steps.num_rows
    assert len(steps["action_"][0].as_py()) == 3
    assert verify([str(tmp_path / "out"), "--deep"]) == 0


def test_a_frame_that_does_not_decode_is_a_hole(tmp_path: Path) -> None:
    folder = copy_dataset("v3_av1", tmp_path / "source")
    path = folder / "videos/observation.images.front/chunk-000/file-000.mp4"
    content = bytearray(path.read_bytes())
    content[1500:1700] = bytes(200)
    path.write_bytes(content)
    out = tmp_path / "out"
    assert main(arguments("v3_av1", tmp_path / "source", out, *FRAMES)) == EXIT_DAMAGED
    actual = quarantine(out)
    assert {reason for reason, _, _ in actual} == {"corrupt_frame"}
    converted = open_converted(out, "demo_v3_av1", "3.0.0")
    num_missing = converted.splits["train"].records["num_bytes"].to_pylist().count(len(HOLE))
    assert num_missing == len(actual) == converted.manifest.left_out["corrupt_frame"]
    assert converted.manifest.records == 108


@pytest.mark.long
@pytest.mark.parametrize("name", ["v3_av1", "v21_av1"])
def test_a_dataset_in_a_bucket_is_converted_as_a_local_one(name: str, tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    staging.mkdir()
    assert main(arguments(name, DATA, tmp_path / "out", *FRAMES)) == 0
    with object_store("s3", tmp_path / "log") as store:
        bucket = store.new_bucket()
        upload_tree(DATA / "demo" / name, f"{bucket}/hub/demo/{name}")
        command = arguments(name, f"{bucket}/hub", f"{bucket}/out", *FRAMES, "--staging", str(staging))
        assert main(command) == 0
        remote = objects(f"{bucket}/out")
        assert fetch([f"{bucket}/out", str(tmp_path / "fetched"), "--mixture", f"demo_{name}"]) == 0
        assert verify([str(tmp_path / "fetched")]) == 0
    local = {str(path.relative_to(tmp_path / "out")): path for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert set(remote) == set(local)
    assert [key for key, path in local.items() if path.read_bytes() != remote[key]] == [
        f"demo_{name}/{VERSIONS[name]}/dataset.json"
    ]
    assert list(staging.iterdir()) == []


def test_an_offset_longer_than_every_episode_is_refused_before_anything_is_converted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longest = int(np.bincount(expected("v3_av1")["episode_index"]).max())
    options = arguments("v3_av1", DATA, tmp_path / "out")
    assert main([*options, "--offset", str(longest)]) == EXIT_USAGE
    error = capsys.readouterr().err
    assert f"split train gives no pair at offset {longest}: its longest episode has {longest} steps" in error
    assert not (tmp_path / "out").exists()
    assert main([*options, "--offset", str(longest - 1), "--dry-run"]) == 0
