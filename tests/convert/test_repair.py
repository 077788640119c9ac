"""A repair gives the bytes of the manifest, or an error that leaves everything as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from convert.errors import EXIT_FAILED
from convert.run.command import main
from convert.shard import video
from convert.verify.command import verify_root
from tests.fixtures.command import tree
from tests.fixtures.datasets.rlds_dataset import demo_episode, demo_features, serialise, write_dataset

SHARD = "demo/1.0.0/train/train-00000-of-00002.arrayrecord"


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    shards = [[serialise(demo_features(), demo_episode(9, seed=seed))] for seed in range(2)]
    dataset = write_dataset(tmp_path / "source", splits={"train": shards})
    where = ["--source", str(dataset.root), "--config", str(dataset.registry()), "--output", str(tmp_path / "out")]
    how = ["--layout", "frames", "--codec", "h264", "--image-size", "native", "--num-workers", "1"]
    return ["--datasets", "demo", *where, *how]


def test_a_repair_gives_the_bytes_of_the_manifest_or_changes_nothing(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    assert main(command) == 0
    whole = tree(output)
    (output / SHARD).unlink()
    assert main(command) == 0
    assert tree(output) == whole

    (output / SHARD).unlink()
    # As another version of the encoder would.
    monkeypatch.setitem(video._OPTIONS["h264"], "preset", "ultrafast")
    capsys.readouterr()
    assert main(command) == EXIT_FAILED
    message = capsys.readouterr().err
    assert "train-00000-of-00002 was made again and differs from the manifest" in message
    assert "so nothing was replaced: the same source gives other bytes here" in message
    assert "Traceback" not in message
    left = {name: content for name, content in tree(output).items() if ".convert" not in name}
    assert left == {name: content for name, content in whole.items() if name != SHARD}

    assert main([*command, "--redo", "train-00000-of-00002"]) == 0
    assert verify_root(output, deep=True, jobs=1).ok
