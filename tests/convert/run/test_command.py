"""The work and output of the command when nothing goes wrong."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
import yaml

from convert.run.arguments import Command, build_parser, option_flags
from convert.run.command import main
from convert.source.rlds.record_files import TFRecordFile
from stream.format.manifest import read_manifest
from tests.fixtures.command import REPOSITORY, Result, run, tree
from tests.fixtures.datasets.five_shards import PAIRS, SHARDS, Convert, convert, dataset, folder, output
from tests.fixtures.datasets.rlds_dataset import RldsDataset, demo_episode, write_dataset

__all__ = ["convert", "dataset", "folder", "output"]


def moments(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of every file."""
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def rows(result: Result) -> Any:
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_conversion_leaves_a_file_a_shard_three_a_split_and_the_manifest(convert: Convert, folder: Path) -> None:
    assert convert().code == 0
    shards = [f"train/train-{i:05d}-of-00003" for i in range(3)] + [f"val/val-{i:05d}-of-00002" for i in range(2)]
    index = {f"{split}/{kind}.arrow" for split in ("train", "val") for kind in ("episodes", "steps", "records")}
    files = {f"{shard}.arrayrecord" for shard in shards} | index
    assert set(tree(folder)) == {"dataset.json", "train", "val", *files}


def test_result_is_a_table_with_a_row_for_each_dataset(convert: Convert) -> None:
    header, row = convert().out.splitlines()
    assert header.split() == ["dataset", "version", "splits", "episodes", "pairs", "in", "out", "left", "out"]
    assert row.split()[:6] == ["demo", "1.0.0", "train,", "val", str(SHARDS), str(SHARDS * PAIRS)]
    assert row.split()[-1] == "-"


@pytest.mark.long
def test_in_the_layout_frames_everything_says_frames(convert: Convert) -> None:
    frames = ("--layout", "frames")
    dry = convert("--dry-run", *frames).out
    done = convert(*frames)
    repeated = convert("--json", *frames)
    counted = convert("--json", "--overwrite", *frames)
    assert "frames (est.)" in dry
    assert " 24x32 " in dry
    assert done.out.split()[4] == "frames"
    assert f"{SHARDS}/{SHARDS} shards, {SHARDS * (PAIRS + 2)} frames (" in done.err
    assert json.loads(repeated.out)["complete"][0]["frames"] == SHARDS * (PAIRS + 2)
    assert rows(counted)["counters"]["frames"] == SHARDS * (PAIRS + 2)
    for text in (dry, done.out, done.err, counted.out):
        assert "pairs" not in text


def test_json_gives_the_result_of_each_dataset(convert: Convert, folder: Path, dataset: RldsDataset) -> None:
    result = rows(convert("--json"))
    shards = [shard for split in read_manifest(folder).splits.values() for shard in split.shards]
    assert result == {
        "complete": [
            {
                "dataset": "demo",
                "version": "1.0.0",
                "output": str(folder),
                "splits": {"train": 3 * PAIRS, "val": 2 * PAIRS},
                "episodes": SHARDS,
                "steps": SHARDS * 9,
                "pairs": SHARDS * PAIRS,
                "bytes_in": sum(shard.source_bytes for shard in shards),
                "bytes_out": sum(path.stat().st_size for path in folder.glob("*/*")),
                "shards": SHARDS,
                "shards_converted": SHARDS,
                "left_out": {},
                "nonfinite_episodes": {},
                "instruction": None,
            }
        ],
        "waiting": [],
        "counters": {
            "shards": SHARDS,
            "episodes": SHARDS,
            "pairs": SHARDS * PAIRS,
            "bytes_in": sum(len(record) for path in dataset.path.glob("*.tfrecord-*") for record in records(path)),
            "bytes_out": sum(path.stat().st_size for path in folder.glob("*/*")),
            "left_out": 0,
            "splits": 2,
        },
    }


def records(path: Path) -> list[bytes]:
    with path.open("rb") as file:
        actual = list(TFRecordFile(file, name=path.name, size=path.stat().st_size))
    return [record for record in actual if isinstance(record, bytes)]


def test_complete_conversion_is_not_touched_when_the_command_is_run_again(convert: Convert, folder: Path) -> None:
    convert()
    before = moments(folder)
    repeated = rows(convert("--json"))
    assert (repeated["complete"][0]["shards_converted"], repeated["counters"]) == (0, {})
    assert convert().out.splitlines()[-1] == "1 of 1 were complete already"
    assert moments(folder) == before


@pytest.mark.long
def test_overwrite_does_everything_again_with_the_same_result(convert: Convert, folder: Path) -> None:
    convert()
    content, before = tree(folder), moments(folder)
    assert rows(convert("--overwrite", "--json"))["complete"][0]["shards_converted"] == SHARDS
    assert tree(folder) == content
    assert all(moment != before[path] for path, moment in moments(folder).items())


def test_dry_run_writes_nothing_at_all(convert: Convert, tmp_path: Path, dataset: RldsDataset) -> None:
    dataset.registry()
    before = tree(tmp_path), tree(dataset.root)
    assert convert("--dry-run").code == 0
    assert (tree(tmp_path), tree(dataset.root)) == before


def test_dry_run_of_an_overwrite_removes_nothing(convert: Convert, folder: Path) -> None:
    convert()
    before = moments(folder)
    (row,) = rows(convert("--dry-run", "--overwrite", "--json"))
    assert (row["shards_done"], row["removes"]) == (0, ["train", "val"])
    assert f"demo: --overwrite would remove train, val in {folder}" in convert("--dry-run", "--overwrite").out
    assert moments(folder) == before


def test_dry_run_as_json_says_what_would_be_done(convert: Convert, dataset: RldsDataset, folder: Path) -> None:
    (row,) = rows(convert("--dry-run", "--json"))
    estimated, space = row.pop("estimated_bytes"), row.pop("total")
    assert space["estimated_bytes"] == estimated and space["fits_disk"] and space["available_memory"] > 0
    assert row == {
        "dataset": "demo",
        "version": "1.0.0",
        "source": str(dataset.path),
        "output": str(folder),
        "splits": ["train", "val"],
        "episodes": SHARDS,
        "shards": SHARDS,
        "shards_done": 0,
        "complete": False,
        "offset": 2,
        "bytes_in": sum(path.stat().st_size for path in dataset.path.glob("*.tfrecord-*")),
        "estimated_pairs": pytest.approx(SHARDS * PAIRS, rel=0.05),
        "frame_sizes": {"observation/image": "24x32"},
        "removes": [],
        "understood": [],
    }
    convert()
    assert estimated == pytest.approx(sum(path.stat().st_size for path in folder.rglob("*.arrayrecord")), rel=0.9)


def test_dry_run_of_a_complete_conversion_says_so(convert: Convert) -> None:
    convert()
    (row,) = rows(convert("--dry-run", "--json"))
    assert (row["complete"], row["shards_done"]) == (True, SHARDS)
    assert "5/5 complete" in convert("--dry-run").out


def test_dry_run_is_a_table_with_a_row_for_each_dataset(convert: Convert) -> None:
    header, row, space = convert("--dry-run").out.splitlines()
    assert re.match(r"estimate: .+, fits into the .+ of free memory, fits into the .+ of free disk", space)
    assert header.split()[:5] == ["dataset", "version", "splits", "episodes", "offset"]
    assert row.split()[:7] == ["demo", "1.0.0", "train,", "val", str(SHARDS), "2", "0/5"]


def test_episodes_converts_the_range_only(convert: Convert, folder: Path) -> None:
    assert convert("--episodes", "train[1:2]+val[:1]").code == 0
    splits = read_manifest(folder).splits
    assert {name: [shard.name for shard in split.shards] for name, split in splits.items()} == {
        "train": ["train-00001-of-00003"],
        "val": ["val-00000-of-00002"],
    }


@pytest.mark.long
def test_first_source_that_has_a_dataset_wins(
    convert: Convert, dataset: RldsDataset, folder: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert convert("--source", str(empty)).code == 0
    assert read_manifest(folder).source.path == str(dataset.path)


@pytest.mark.long
def test_several_datasets_have_a_row_each_and_a_total(output: Path, tmp_path: Path) -> None:
    configs: list[str] = []
    for name in ("first", "second"):
        dataset = write_dataset(tmp_path / "source", name, splits={"train": [[demo_episode(9)]]})
        configs += ["--config", str(dataset.registry())]
    result = run(
        *("--datasets", "first,second", "--source", str(tmp_path / "source"), "--output", str(output)),
        *(*configs, "--num-workers", "2"),
    )
    assert result.code == 0, result.err
    _, *lines = result.out.splitlines()
    assert [line.split()[0] for line in lines] == ["first", "second", "2"]
    assert lines[2].split()[:4] == ["2", "datasets", "2", str(2 * PAIRS)]


def test_dataset_of_a_user_needs_nothing_but_a_config(output: Path, tmp_path: Path) -> None:
    steps = {
        "camera": tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg"),
        "arm": tfds.features.Tensor(shape=(6,), dtype=np.float32),
        "order": tfds.features.Text(),
    }
    frames = [step["observation"]["image"] for step in demo_episode(9)["steps"]]
    episode = {"steps": [{"camera": frame, "arm": np.ones(6, np.float32), "order": "stack"} for frame in frames]}
    features = {"steps": tfds.features.Dataset(steps)}
    dataset = write_dataset(tmp_path / "source", "my_robot", features=features, splits={"demos": [[episode]]})
    entry = {
        "tfds_name": "my_robot",
        "version": "1.0.0",
        "description": "Mine.",
        "cameras": {"front": {"path": "camera", "role": "primary", "storage": "jpeg", "shape": [24, 32, 3]}},
        "instruction": {"path": "order"},
        "action": [{"path": "arm", "dims": 6, "quantity": "joint_position", "kind": "absolute"}],
        "control_frequency": 10,
    }
    config = tmp_path / "my.yaml"
    config.write_text(yaml.safe_dump({"datasets": {"mine": entry}}))
    arguments = ["--datasets", "mine", "--config", str(config), "--source", str(dataset.root)]
    assert main([*arguments, "--output", str(output), "--offset", "0.3s", "--num-workers", "1"]) == 0
    manifest = read_manifest(output / "mine" / "1.0.0")
    assert (manifest.records, manifest.parameters["offset"], list(manifest.splits)) == (6, 3, ["demos"])


@pytest.mark.parametrize(
    ("command", "codes"), [("convert", (0, 1, 2, 3, 130)), ("finalize", (0, 1, 2, 3, 130)), ("remove", (0, 1, 2, 130))]
)
def test_help_mentions_exactly_the_options_of_a_subcommand_and_its_exit_codes(
    command: Command, codes: tuple[int, ...]
) -> None:
    result = run(*([] if command == "convert" else [command]), "--help")
    assert result.code == 0
    synopsis = result.out.partition("\n\n")[0]
    assert set(re.findall(r"--[a-z-]+", synopsis)) == set(option_flags(command)) - {"-h", "--help"}
    for action in build_parser(command)._actions:
        assert all(flag in result.out for flag in action.option_strings)
        assert action.help
    for code in codes:
        assert f"\n  {code:<5}" in result.out


def test_help_loads_neither_beam_nor_tensorflow() -> None:
    script = (
        "import sys\nfrom convert.run.command import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'apache_beam', 'tensorflow', 'dask'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"
