"""A function of one's own as a source: what it yields is converted; its faults name file, episode and line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from convert.errors import EXIT_FAILED, EXIT_USAGE
from convert.run.command import main
from stream import Frames, make_loader
from tests.fixtures.datasets.own_files import FUNCTION, write_files


def convert(arguments: list[str], output: Path, *more: str) -> int:
    return main([*arguments, "--output", str(output), "--num-workers", "1", "--offset", "2", *more])


def test_frames_numbers_and_texts_of_all_files_are_those_of_the_function(tmp_path: Path) -> None:
    arguments = write_files(tmp_path)
    assert convert(arguments, tmp_path / "out", "--layout", "frames", "--image-size", "native", "--quality", "100") == 0
    loader = make_loader(tmp_path / "out", "reader", batch_size=4, action=1, frames=[0])
    rows = 0
    for step in range(20):
        batch = loader.batch_at(step)
        for row, ref in enumerate(loader.describe(step)):
            file, position = ref.source_file, ref.episode_id.rpartition("__")[2]
            with np.load(tmp_path / "files" / file) as stored:
                assert np.array_equal(batch["action"][row, 0], stored[f"action{position}"][ref.step])
                assert np.array_equal(batch["state"][row], stored[f"state{position}"][ref.step].astype(np.float32))
                assert batch["language"][row] == str(stored["text"])
                difference = batch["frames"][row, 0].astype(int) - stored[f"front{position}"][ref.step]
            assert np.abs(difference).mean() < 12
            rows += 1
    assert rows == 80


def test_jpegs_of_the_right_size_pass_byte_for_byte(tmp_path: Path) -> None:
    code = FUNCTION.replace(
        'stored[f"front{number}"],',
        '[simplejpeg.encode_jpeg(np.ascontiguousarray(each)) for each in stored[f"front{number}"]],',
    ).replace("import numpy as np", "import numpy as np, simplejpeg")
    arguments = write_files(tmp_path, code=code)
    assert convert(arguments, tmp_path / "out", "--image-size", "32x48") == 0
    manifest = json.loads((tmp_path / "out/reader/1.0.0/dataset.json").read_text())
    passed = [shard["passed"] for shard in manifest["splits"]["train"]["shards"]]
    assert sum(passed) > 0
    assert manifest["image"]["sizes"] == {"32x48": sum(passed)}


@pytest.mark.parametrize(
    ("location", "source", "message"),
    [
        ("reader.py", "files", "expected python:FILE.py:FUNCTION"),
        ("{0}/none.py:episodes", "files", "none.py: No such file or directory"),
        ("{0}/reader.py:episodes", None, "give one --source"),
        ("{0}/reader.py:episodes", "nothing", "no such file or folder"),
        ("{0}/reader.py:episodes", "files/*.hdf5", "no such file or folder"),
    ],
)
def test_a_wrong_place_is_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], location: str, source: str | None, message: str
) -> None:
    write_files(tmp_path)
    sources = [] if source is None else ["--source", str(tmp_path / source)]
    assert convert(["--datasets", f"python:{location.format(tmp_path)}", *sources], tmp_path / "out") == EXIT_USAGE
    assert message in capsys.readouterr().err


def test_folders_named_like_splits_are_splits_and_a_glob_chooses_files(tmp_path: Path) -> None:
    arguments = write_files(tmp_path)
    for number, split in ((0, "train"), (1, "val")):
        (tmp_path / "files" / split).mkdir()
        os.rename(tmp_path / "files" / f"take{number}.npz", tmp_path / "files" / split / f"take{number}.npz")
    (tmp_path / "files" / "take3.npz").unlink()
    assert convert(arguments, tmp_path / "out") == 0
    manifest = json.loads((tmp_path / "out/reader/1.0.0/dataset.json").read_text())
    files = {name: [shard["source_file"] for shard in split["shards"]] for name, split in manifest["splits"].items()}
    assert files == {"train": ["take2.npz", "train/take0.npz"], "val": ["val/take1.npz"]}
    arguments[-1] = str(tmp_path / "files" / "*" / "*.npz")
    assert convert(arguments, tmp_path / "glob") == 0


def test_the_arguments_of_the_function_stand_in_the_yaml(tmp_path: Path) -> None:
    arguments = write_files(tmp_path, code=FUNCTION.replace("only=None", "only"))
    config = tmp_path / "mine.yaml"
    config.write_text(f"datasets: {{arm: {{source: '{arguments[1]}', layout: {{only: 5}}, control_frequency: 10}}}}")
    chosen = ["--datasets", "arm", *arguments[2:]]
    assert convert(chosen, tmp_path / "out", "--config", str(config), "--offset", "0.2s") == 0
    assert (tmp_path / "out/arm/1.0.0/dataset.json").is_file()


def test_episodes_in_tfds_grammar_are_refused_where_only_reading_tells_their_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(write_files(tmp_path), tmp_path / "out", "--episodes", "train[:2]") == EXIT_USAGE
    assert "files show their episodes only when they are read" in capsys.readouterr().err


def test_files_without_any_episode_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert(write_files(tmp_path, episodes=0), tmp_path / "out") in (EXIT_USAGE, EXIT_FAILED)
    assert "no episode can be read, so its features are not known; no file has an episode" in capsys.readouterr().err


def test_depth_maps_are_cameras_where_the_yaml_says_so(tmp_path: Path) -> None:
    code = FUNCTION.replace(
        '"state": stored[f"state{number}"]}',
        '"metres": (stored[f"front{number}"][..., 0] / 100).astype(np.float32), '
        '"raw": stored[f"front{number}"][..., :1].astype(np.uint16)}',
    )
    arguments = write_files(tmp_path, code=code)
    config = tmp_path / "mine.yaml"
    fields = {"role": "other", "kind": "depth"}
    units = {"metres": "m", "raw": "mm"}
    cameras = {name: {**fields, "path": f"observation/{name}", "unit": unit} for name, unit in units.items()}
    config.write_text(json.dumps({"datasets": {"reader": {"source": arguments[1], "cameras": cameras}}}))
    more = ["--config", str(config), "--layout", "frames", "--cameras", "all,depth", "--image-size", "native"]
    assert convert(["--datasets", "reader", *arguments[2:]], tmp_path / "out", *more) == 0
    loader = make_loader(
        tmp_path / "out", "reader", batch_size=4, frames=Frames([-1, 0], cameras=("front", "metres", "raw"))
    )
    batch = loader.batch_at(0)
    for row, ref in enumerate(loader.describe(0)):
        with np.load(tmp_path / "files" / ref.source_file) as stored:
            front = stored[f"front{ref.episode_id.rpartition('__')[2]}"]
        for frame, step in enumerate(ref.frame_steps):
            if batch["depth_mask/raw"][row, frame]:
                assert np.array_equal(batch["depth/raw"][row, frame], front[step][..., 0])
                assert np.array_equal(batch["depth/metres"][row, frame], front[step][..., 0].astype(np.uint16) * 10)
