"""``convert finalize``: the manifests of what the tasks of an array left, and what is missing."""

import json
import socket
from pathlib import Path

import pytest

from convert.errors import EXIT_DAMAGED, EXIT_FAILED
from convert.journal.journal import Journal
from convert.plan import ConvertConfig
from convert.run.command import main
from convert.shard.images import FramePolicy
from convert.tasks.shard import convert_shard
from stream.format.manifest import read_manifest
from tests.fixtures.command import Result, tree, write_damaged_dataset
from tests.fixtures.datasets.five_shards import SHARDS, Convert, convert, dataset, folder, output
from tests.fixtures.datasets.rlds_dataset import RldsDataset, demo_episode, write_dataset

__all__ = ["convert", "dataset", "folder", "output"]


def convert_shards_only(dataset: RldsDataset, output: Path) -> None:
    """Convert everything but the manifest, as tasks that were killed after their last shard."""
    conversion = dataset.conversion(output, ConvertConfig(policy=FramePolicy(size=None)))
    Journal(conversion.plan.output).begin({**conversion.parameters, "source": conversion.source.fingerprint})
    for job in conversion.jobs:
        assert convert_shard(job, conversion.plan)


def test_manifest_is_written_when_all_shards_are_finished(
    convert: Convert, dataset: RldsDataset, output: Path, tmp_path: Path
) -> None:
    convert_shards_only(dataset, output)
    result = convert(command="finalize")
    assert result.code == 0, result.err
    assert convert(output=tmp_path / "once").code == 0
    assert tree(output) == tree(tmp_path / "once")


def test_nothing_is_converted_and_missing_shards_are_named(convert: Convert, output: Path) -> None:
    assert convert("--task-count", "3", "--task-index", "0").code == 0
    before = tree(output)
    result = convert(command="finalize")
    assert result.code == EXIT_FAILED
    assert result.out.splitlines() == [
        "demo: 3 of 5 shards are missing",
        "  train-00001-of-00003",
        "  train-00002-of-00003",
        "  val-00001-of-00002",
    ]
    assert result.error() == (
        "error: not complete, shards are missing: demo (3 of 5 shards); run those tasks again, then this command"
    )
    assert tree(output) == before


def test_output_where_nothing_was_converted_stays_as_it_is(convert: Convert, output: Path) -> None:
    result = convert(command="finalize")
    assert result.code == EXIT_FAILED
    assert "demo (5 of 5 shards)" in result.error()
    assert not output.exists()


def test_json_names_every_missing_shard(convert: Convert) -> None:
    assert convert("--task-count", "5", "--task-index", "4").code == 0
    result = json.loads(convert("--json", command="finalize").out)
    stems = [f"train-{i:05d}-of-00003" for i in range(3)] + ["val-00000-of-00002"]
    missing = [{"shard": stem, "host": None, "failure": None} for stem in stems]
    assert result["missing"] == [{"dataset": "demo", "shards": SHARDS, "missing": missing}]
    assert result["complete"] == []


@pytest.mark.long
def test_shard_that_failed_is_listed_with_its_reason_until_it_is_finished(
    convert: Convert, folder: Path, tmp_path: Path
) -> None:
    damaged = write_damaged_dataset(tmp_path / "damaged")
    task = ("--task-count", "9", "--task-index", "2", "--on-error", "fail")
    failed = convert(*task, dataset=damaged)
    assert failed.code == EXIT_FAILED
    result = convert(command="finalize", dataset=damaged)
    first = result.out.splitlines()[1]
    reason = failed.error().removeprefix("error: ")
    assert first == f"  train-00002-of-00006  failed on {socket.gethostname()}: {reason}"
    assert convert(dataset=damaged).code == EXIT_DAMAGED
    assert not (folder / ".convert").exists()
    assert convert(command="finalize", dataset=damaged).code == EXIT_DAMAGED


def test_complete_datasets_get_their_manifests_though_others_are_not(
    output: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configs: list[str] = []
    datasets = {}
    for name in ("first", "second"):
        datasets[name] = write_dataset(tmp_path / "source", name, splits={"train": [[demo_episode(9)]]})
        configs += ["--config", str(datasets[name].registry())]
    convert_shards_only(datasets["first"], output)
    arguments = ["--datasets", "first,second", "--source", str(tmp_path / "source"), "--output", str(output), *configs]
    code = main(["finalize", *arguments, "--image-size", "native"])
    result = Result(code, *capsys.readouterr())
    assert code == EXIT_FAILED
    assert "second (1 of 1 shards)" in result.error()
    assert result.out.splitlines()[1].split()[0] == "first"
    assert read_manifest(output / "first" / "1.0.0").episodes == 1
    assert not (output / "second").exists()
