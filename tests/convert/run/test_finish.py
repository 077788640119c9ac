import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.errors import ConflictError
from convert.journal.journal import Journal
from convert.plan import Conversion, ConvertConfig
from convert.run.finish import finalise
from convert.run.status import read_status
from convert.shard.images import FramePolicy
from convert.tasks.shard import convert_shard
from stream.format.manifest import Manifest, TableEntry, describe_file, read_manifest
from stream.format.names import TABLE_KINDS, shard_file, table_file
from stream.format.table import hash_column, open_table
from tests.fixtures.command import tree
from tests.fixtures.datasets.rlds_dataset import RldsDataset, convert_dataset, demo_episode, merge_splits, write_dataset

REPOSITORY = Path(__file__).resolve().parents[3]
POLICY = FramePolicy(size=None)
NATIVE = ConvertConfig(policy=POLICY)
LENGTHS = {"train": [[6, 2, 0], [9]], "val": [[4]]}


def make_episode(split: str, shard: int, episode: int, steps: int) -> dict[str, Any]:
    return demo_episode(steps, seed=1000 * (split == "val") + 10 * shard + episode)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> RldsDataset:
    """Offset 2: train gives 4 + 0 + 0 and 7 pairs, val 2; the third frame of the episode in val is damaged."""
    splits = {
        split: [
            [make_episode(split, shard, episode, steps) for episode, steps in enumerate(lengths)]
            for shard, lengths in enumerate(shards)
        ]
        for split, shards in LENGTHS.items()
    }
    splits["val"][0][0]["steps"][2]["observation"]["image"] = b"\xff\xd8\xffdamaged"
    return write_dataset(tmp_path_factory.mktemp("source"), splits=splits)


@pytest.fixture(scope="module")
def conversion(dataset: RldsDataset, tmp_path_factory: pytest.TempPathFactory) -> Conversion:
    return dataset.conversion(tmp_path_factory.mktemp("out"), NATIVE)


@pytest.fixture(scope="module")
def manifest(conversion: Conversion) -> Manifest:
    return convert_dataset(conversion)


def test_counts_of_shards_splits_and_dataset_add_up(manifest: Manifest) -> None:
    assert (manifest.episodes, manifest.steps, manifest.records) == (5, 21, 12)
    train, val = manifest.splits["train"], manifest.splits["val"]
    assert [(shard.name, shard.episodes, shard.steps, shard.records) for shard in train.shards] == [
        ("train-00000-of-00002", 3, 8, 4),
        ("train-00001-of-00002", 1, 9, 7),
    ]
    assert (val.episodes, val.steps, val.records) == (1, 4, 1)


def test_what_was_left_out_is_counted_by_reason(manifest: Manifest) -> None:
    assert manifest.left_out == {"corrupt_frame": 1, "empty": 1, "pair_of_corrupt_frame": 1, "too_short": 1}
    assert manifest.splits["train"].shards[0].left_out == {"empty": 1, "too_short": 1}


def test_what_was_left_out_is_listed_in_the_order_of_the_source(conversion: Conversion, manifest: Manifest) -> None:
    lines = (Path(conversion.plan.output) / "quarantine.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert [(entry["shard"], entry["episode"], entry["step"], entry["reason"]) for entry in entries] == [
        ("train-00000-of-00002", 1, None, "too_short"),
        ("train-00000-of-00002", 2, None, "empty"),
        ("val-00000-of-00001", 0, 2, "corrupt_frame"),
    ]


def test_the_hashes_are_those_of_the_files(conversion: Conversion, manifest: Manifest) -> None:
    for name, split in manifest.splits.items():
        folder = Path(conversion.plan.output) / name
        for shard in split.shards:
            assert describe_file(folder / shard_file(shard.name)) == shard.file
        for kind in TABLE_KINDS:
            table = open_table(folder / table_file(kind), kind)
            columns = {column: hash_column(table.content, path) for column, path in table.columns.items()}
            complete_bytes = describe_file(folder / table_file(kind))
            assert split.index[kind] == TableEntry(**complete_bytes.model_dump(), columns=columns)


def test_rows_of_the_index_are_numbered_in_the_split(conversion: Conversion, manifest: Manifest) -> None:
    folder = Path(conversion.plan.output) / "train"
    records = open_table(folder / "records.arrow", "records").arrow().to_pydict()
    assert records["shard"] == [0] * 4 + [1] * 7
    assert records["episode"] == [0] * 4 + [3] * 7
    assert records["steps_row"] == [0, 1, 2, 3, *range(8, 15)]


def test_the_statistics_are_numpys_over_all_steps_of_the_split(manifest: Manifest) -> None:
    for vector, read in {
        "action": lambda step: step["action"],
        "state": lambda step: step["observation"]["state"],
    }.items():
        values = np.array(
            [
                read(step)
                for shard, lengths in enumerate(LENGTHS["train"])
                for episode, steps in enumerate(lengths)
                for step in make_episode("train", shard, episode, steps)["steps"]
            ],
            np.float64,
        )
        actual = manifest.statistics["train"][vector]  # type: ignore[index]
        assert actual.count == len(values) == 17
        np.testing.assert_allclose(np.array(actual.mean, float), values.mean(0), rtol=1e-6)
        np.testing.assert_allclose(np.array(actual.std, float), values.std(0), rtol=1e-6)
        np.testing.assert_allclose(np.array(actual.q99, float), np.quantile(values, 0.99, axis=0), rtol=1e-6)


def test_source_parameters_and_versions_are_recorded(
    conversion: Conversion, manifest: Manifest, dataset: RldsDataset
) -> None:
    assert (manifest.dataset, manifest.version, manifest.layout) == ("demo", "1.0.0", "pairs")
    assert manifest.source.path == str(dataset.path)
    assert manifest.source.fingerprint == conversion.source.fingerprint
    assert manifest.parameters == json.loads(json.dumps(dict(conversion.parameters)))
    assert manifest.spec["action"][0]["path"] == "action"
    assert manifest.versions["numpy"] == np.__version__
    assert manifest.image == {"encoding": "jpeg", "sizes": {"24x32": 18}, "passed": 18, "transcoded": 0}
    assert manifest.parameters["frame_offsets"] == [0, 2]


def test_the_manifest_on_disk_is_the_one_returned_and_the_journal_is_gone(
    conversion: Conversion, manifest: Manifest
) -> None:
    output = Path(conversion.plan.output)
    read = read_manifest(output)
    assert read.model_copy(update={"checksum": manifest.checksum}) == manifest
    assert sorted(path.name for path in output.iterdir()) == ["dataset.json", "quarantine.jsonl", "train", "val"]


def test_finalising_a_complete_conversion_changes_nothing(conversion: Conversion, manifest: Manifest) -> None:
    path = Path(conversion.plan.output) / "dataset.json"
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    assert finalise(conversion) == read_manifest(path)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_while_a_shard_is_missing_there_is_no_manifest(dataset: RldsDataset, tmp_path: Path) -> None:
    conversion = dataset.conversion(tmp_path, NATIVE)
    Journal(conversion.plan.output).begin(conversion.parameters)
    for job in conversion.jobs[:-1]:
        convert_shard(job, conversion.plan)
        assert finalise(conversion) is None
    assert not (Path(conversion.plan.output) / "dataset.json").exists()
    convert_shard(conversion.jobs[-1], conversion.plan)
    assert finalise(conversion) is None
    assert [job.split for job in read_status(conversion).pending_merges] == ["train", "val"]
    merge_splits(conversion)
    assert finalise(conversion) is not None


def test_a_split_that_is_added_later_keeps_the_first(dataset: RldsDataset, manifest: Manifest, tmp_path: Path) -> None:
    first = convert_dataset(dataset.conversion(tmp_path, ConvertConfig(policy=POLICY, splits=("val",))))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "demo/1.0.0/val").iterdir()}
    second = convert_dataset(dataset.conversion(tmp_path, ConvertConfig(policy=POLICY, splits=("train",))))
    assert list(first.splits) == ["val"]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert second.splits == manifest.splits
    assert second.statistics == manifest.statistics
    assert second.left_out == manifest.left_out
    assert second.image == manifest.image
    lines = (tmp_path / "demo" / "1.0.0" / "quarantine.jsonl").read_text().splitlines()
    assert [json.loads(line)["shard"] for line in lines] == ["train-00000-of-00002"] * 2 + ["val-00000-of-00001"]


NO_LOCKS = """
import errno, fcntl
def refuse(*_):
    raise OSError(errno.ENOLCK, "No locks available")
fcntl.flock = refuse
"""
FINALISE = """
import sys
from pathlib import Path
from convert.run.finish import finalise
from convert.shard.images import FramePolicy
from convert.tasks.merge import merge_split
from convert.plan import ConvertConfig
from convert.run.status import read_status
from tests.fixtures.datasets.rlds_dataset import RldsDataset
root, output = map(Path, sys.argv[1:])
conversion = RldsDataset(root, "demo").conversion(output, ConvertConfig(policy=FramePolicy(size=None)))
print("ready", flush=True)
sys.stdin.readline()
for job in read_status(conversion).pending_merges:
    merge_split(job, conversion.plan)
made = finalise(conversion)
print(made and made.records, flush=True)
"""


@pytest.mark.long
@pytest.mark.parametrize("before", ["", NO_LOCKS], ids=["locks", "no locks"])
@pytest.mark.parametrize("merged", [True, False])
def test_several_processes_may_merge_and_finalise_at_once(
    dataset: RldsDataset, conversion: Conversion, manifest: Manifest, tmp_path: Path, merged: bool, before: str
) -> None:
    reference = tree(Path(conversion.plan.output))
    conversion = dataset.conversion(tmp_path, NATIVE)
    Journal(conversion.plan.output).begin(conversion.parameters)
    for job in conversion.jobs:
        convert_shard(job, conversion.plan)
    if merged:
        merge_splits(conversion)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", before + FINALISE, str(dataset.root), str(tmp_path)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    answers = [process.communicate("\n") for process in processes]
    # One that finds another merging leaves the manifest to it.
    assert {answer for answer, _ in answers} - {"12\n"} <= (set() if merged else {"None\n"}), answers
    assert "12\n" in [answer for answer, _ in answers]
    assert tree(Path(conversion.plan.output)) == reference


def test_another_source_with_the_same_name_is_refused(
    conversion: Conversion, manifest: Manifest, tmp_path: Path
) -> None:
    second = write_dataset(tmp_path, splits={"train": [[demo_episode(3)]]})
    with pytest.raises(
        ConflictError, match=r"was converted from .*/demo/1\.0\.0, whose dataset_info\.json or features"
    ):
        read_status(second.conversion(Path(conversion.plan.output).parents[1], NATIVE))
