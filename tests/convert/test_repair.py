"""A repair gives the bytes of the manifest, or an error that leaves everything as it was."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from convert.errors import EXIT_FAILED
from convert.run.command import main
from convert.shard import video
from convert.source.rlds.record_files import encode_tfrecord
from convert.verify.command import verify_root
from tests.fixtures.command import tree
from tests.fixtures.datasets.rlds_dataset import RldsDataset, demo_episode, demo_features, serialise, write_dataset

Capture = pytest.CaptureFixture[str]
STEM = "train-00000-of-00002"
SPLIT = "demo/1.0.0/train"
SHARD = f"{SPLIT}/{STEM}.arrayrecord"
TABLE = f"{SPLIT}/steps.arrow"


@pytest.fixture
def dataset(tmp_path: Path) -> RldsDataset:
    shards = [[serialise(demo_features(), demo_episode(9, seed=seed))] for seed in range(2)]
    return write_dataset(tmp_path / "source", splits={"train": shards})


@pytest.fixture
def command(dataset: RldsDataset, tmp_path: Path) -> list[str]:
    arguments = ["--source", str(dataset.root), "--config", str(dataset.registry()), "--output", str(tmp_path / "out")]
    how = ["--layout", "frames", "--codec", "h264", "--image-size", "native", "--num-workers", "1"]
    return ["--datasets", "demo", *arguments, *how]


@pytest.fixture
def complete(command: list[str], tmp_path: Path, capsys: Capture) -> dict[str, str]:
    """Convert the dataset, and return its files with their hashes."""
    assert main(command) == 0
    capsys.readouterr()
    return tree(tmp_path / "out")


def check_nothing_replaced(output: Path, complete: dict[str, str], *, lost: str) -> None:
    remaining = {name: content for name, content in tree(output).items() if ".convert" not in name}
    assert remaining == {name: content for name, content in complete.items() if name != lost}


def test_a_repair_gives_the_bytes_of_the_manifest_or_changes_nothing(
    command: list[str], complete: dict[str, str], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    (output / SHARD).unlink()
    assert main(command) == 0
    assert tree(output) == complete

    (output / SHARD).unlink()
    # As another version of the encoder would.
    monkeypatch.setitem(video._OPTIONS["h264"], "preset", "ultrafast")
    capsys.readouterr()
    assert main(command) == EXIT_FAILED
    message = capsys.readouterr().err
    assert f"{STEM} was made again and differs from the manifest in file, so nothing was replaced: " in message
    assert "the same source gives other bytes here; take the versions that wrote the dataset (" in message
    assert "Traceback" not in message
    check_nothing_replaced(output, complete, lost=SHARD)

    assert main([*command, "--redo", STEM]) == 0
    assert verify_root(output, deep=True, jobs=1).ok


def test_a_repair_from_another_source_file_of_the_same_size_names_that_file_and_changes_nothing(
    dataset: RldsDataset, command: list[str], complete: dict[str, str], tmp_path: Path, capsys: Capture
) -> None:
    output, source = tmp_path / "out", dataset.shard(count=2)
    converted = source.read_bytes()
    episode = demo_episode(9, seed=0)
    for step in episode["steps"]:
        step["language_instruction"] = "task 8"
    source.write_bytes(encode_tfrecord(serialise(demo_features(), episode)))
    assert source.stat().st_size == len(converted)
    (output / SHARD).unlink()
    assert main(command) == EXIT_FAILED
    message = capsys.readouterr().err
    # Its frames are the same, so the file of records is too.
    assert f"{STEM} was made again and differs from the manifest in source_digest, so nothing was replaced" in message
    assert f"{source} is not the file that was converted; copy that file again" in message
    check_nothing_replaced(output, complete, lost=SHARD)

    source.write_bytes(converted)
    assert main(command) == 0
    assert tree(output) == complete


def test_a_lost_index_that_is_merged_to_other_bytes_is_an_error_that_changes_nothing(
    command: list[str], complete: dict[str, str], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    (output / TABLE).unlink()
    with monkeypatch.context() as patched:
        # As another version of Arrow would.
        options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
        patched.setattr(pa.ipc, "new_file", partial(pa.ipc.new_file, options=options))
        assert main(command) == EXIT_FAILED
    message = capsys.readouterr().err
    assert "the index of train was merged again from the shards of the manifest, and " in message
    assert "episodes, steps, records differ from it, so nothing was replaced; take the versions that wrote" in message
    assert "Traceback" not in message
    check_nothing_replaced(output, complete, lost=TABLE)

    assert main(command) == 0
    assert tree(output) == complete
