"""A complete dataset that lost a file or whose source was repaired: only the shards concerned are converted again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from convert.errors import EXIT_DAMAGED, EXIT_FAILED, EXIT_USAGE
from convert.journal.journal import Journal
from convert.plan import ConvertConfig
from convert.run.command import main
from convert.run.status import read_status
from convert.shard.images import FramePolicy
from convert.tasks.shard import convert_shard
from convert.verify.command import verify_root
from stream.format.manifest import read_manifest
from stream.format.names import TABLE_KINDS
from stream.label.attach import add_labels, list_labels
from tests.fixtures.command import REPOSITORY, Result, flip, tree, with_corrupt_frame
from tests.fixtures.datasets.five_shards import arguments
from tests.fixtures.datasets.rlds_dataset import RldsDataset, demo_episode, demo_features, serialise, write_dataset
from tests.fixtures.faults.conversion_damage import edit_manifest

Convert = Callable[..., Result]
Moments = dict[str, tuple[int, int]]

FOLDER = "demo/1.0.0"
SHARD = "train/train-00001-of-00003.arrayrecord"
EPISODE = 9


def episodes(shard: int) -> list[bytes]:
    return [serialise(demo_features(), demo_episode(EPISODE, seed=2 * shard + i)) for i in range(2)]


def write_source(root: Path, damage: Callable[[Path], object] | None = None) -> RldsDataset:
    """Three shards of two episodes in train, one in val; ``damage`` is done to the second of train."""
    dataset = write_dataset(root, splits={"train": [episodes(i) for i in range(3)], "val": [episodes(3)]})
    if damage is not None:
        damage(dataset.shard(index=1, count=3))
    return dataset


@pytest.fixture(scope="module")
def five_shards(tmp_path_factory: pytest.TempPathFactory) -> RldsDataset:
    return write_source(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def complete(five_shards: RldsDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output root of a conversion of the whole source."""
    output = tmp_path_factory.mktemp("complete")
    assert main(arguments(five_shards, output)) == 0
    return output


@pytest.fixture
def output(complete: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(complete, tmp_path / "out"))


@pytest.fixture
def convert(five_shards: RldsDataset, output: Path, capsys: pytest.CaptureFixture[str]) -> Convert:
    """Runs the command in this process."""

    def run(*more: str, command: str = "", dataset: RldsDataset = five_shards, output: Path = output) -> Result:
        capsys.readouterr()
        return Result(main([*command.split(), *arguments(dataset, output), *more]), *capsys.readouterr())

    return run


def moments(output: Path) -> Moments:
    """Inode and time of every file."""
    files = [path for path in (output / FOLDER).rglob("*") if path.is_file()]
    return {str(path.relative_to(output / FOLDER)): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def touched(before: Moments, output: Path) -> set[str]:
    return {name for name, moment in moments(output).items() if before.get(name) != moment}


def lose(path: Path) -> None:
    path.unlink()


def shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("damage", [lose, shorten])
def test_a_lost_shard_is_made_again_alone(
    convert: Convert, output: Path, complete: Path, damage: Callable[[Path], None]
) -> None:
    damage(output / FOLDER / SHARD)
    before = moments(output)
    result = convert()
    assert result.code == 0
    assert "demo: train-00001-of-00003 is converted again: its ArrayRecord file is missing" in result.err
    assert tree(output) == tree(complete)
    assert touched(before, output) == {SHARD}


@pytest.mark.parametrize("damage", [lose, shorten])
@pytest.mark.parametrize("kind", TABLE_KINDS)
def test_a_lost_table_is_made_again_from_the_shards_of_its_split(
    convert: Convert, output: Path, complete: Path, kind: str, damage: Callable[[Path], None]
) -> None:
    damage(output / FOLDER / "train" / f"{kind}.arrow")
    before = moments(output)
    result = convert()
    assert result.code == 0
    assert result.err.count(" is converted again: the index of train is missing") == 3
    assert tree(output) == tree(complete)
    assert all(name.startswith("train/") for name in touched(before, output))


def test_a_shard_is_made_again_when_asked_for(convert: Convert, output: Path, complete: Path) -> None:
    flip(output / FOLDER / SHARD, 1000)
    before = moments(output)
    result = convert("--redo", "train-00001-of-00003")
    assert result.code == 0
    assert "demo: train-00001-of-00003 is converted again: --redo" in result.err
    assert tree(output) == tree(complete)
    assert touched(before, output) == {SHARD}


def corrupt_frame(path: Path) -> None:
    """Damage a frame: the pairs that have it are left out, the file keeps its size but not its checksums."""
    first, second = episodes(1)
    dataset = write_dataset(path.parent / "other", splits={"train": [[first, with_corrupt_frame(second, 4)]]})
    path.write_bytes(dataset.shard().read_bytes())


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": shorten,
    "flipped byte": lambda path: flip(path, 500),
    "corrupt frame": corrupt_frame,
}


@pytest.mark.long
@pytest.mark.parametrize("damage", DAMAGE)
def test_when_a_source_file_was_repaired_its_shard_is_made_again_alone(
    convert: Convert, complete: Path, five_shards: RldsDataset, tmp_path: Path, damage: str
) -> None:
    dataset = write_source(tmp_path / "source", DAMAGE[damage])
    output = tmp_path / "repaired"
    assert convert(dataset=dataset, output=output).code == EXIT_DAMAGED
    before = moments(output)
    assert convert(dataset=dataset, output=output).code == EXIT_DAMAGED
    assert moments(output) == before
    repaired = dataset.shard(index=1, count=3)
    repaired.write_bytes(five_shards.shard(index=1, count=3).read_bytes())
    result = convert(dataset=dataset, output=output)
    assert result.code == 0, result.err
    assert f"demo: train-00001-of-00003 is converted again: {repaired.name}" in result.err
    manifest = read_manifest(output / FOLDER)
    assert manifest.source.path == str(dataset.path)
    assert {**tree(output), f"{FOLDER}/dataset.json": ""} == {**tree(complete), f"{FOLDER}/dataset.json": ""}
    assert manifest.model_copy(update={"source": None, "checksum": ""}) == read_manifest(complete / FOLDER).model_copy(
        update={"source": None, "checksum": ""}
    )
    index = {f"train/{kind}.arrow" for kind in TABLE_KINDS}
    assert touched(before, output) == {SHARD, "dataset.json", *index}


def test_a_source_that_was_damaged_since_does_not_replace_a_good_shard(
    convert: Convert, output: Path, complete: Path, tmp_path: Path
) -> None:
    dataset = write_source(tmp_path / "source", shorten)
    result = convert(dataset=dataset)
    assert result.code == EXIT_FAILED
    assert "2 damaged, 0 when it was converted, so the converted shard stays as it is" in result.error()
    assert read_manifest(output / FOLDER) == read_manifest(complete / FOLDER)
    assert convert().code == 0
    assert tree(output) == tree(complete)


def test_a_dry_run_says_what_is_to_be_made_again_and_does_nothing(convert: Convert, output: Path) -> None:
    (output / FOLDER / SHARD).unlink()
    before = tree(output)
    assert "3/4" in convert("--dry-run").out
    assert tree(output) == before


def test_finalize_names_a_lost_shard(convert: Convert, output: Path) -> None:
    (output / FOLDER / SHARD).unlink()
    result = convert(command="finalize")
    assert result.code == EXIT_FAILED
    assert result.out.splitlines() == ["demo: 1 of 4 shards are missing", "  train-00001-of-00003"]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "case", [pytest.param("shard", marks=pytest.mark.slow), pytest.param("index", marks=pytest.mark.slow), "repaired"]
)
def test_killed_anywhere_it_leaves_an_error_or_true_data_and_the_same_command_goes_on(
    complete: Path, five_shards: RldsDataset, tmp_path: Path, case: str
) -> None:
    broken, source = tmp_path / "broken", five_shards
    if case == "repaired":
        source = write_source(tmp_path / "source", shorten)
        assert main(arguments(source, broken)) == EXIT_DAMAGED
        shutil.copyfile(five_shards.shard(index=1, count=3), source.shard(index=1, count=3))
        complete = tmp_path / "complete"
        assert main(arguments(source, complete)) == 0
    else:
        shutil.copytree(complete, broken)
        (broken / FOLDER / (SHARD if case == "shard" else "train/steps.arrow")).unlink()
    locations = (source.root, broken, complete, tmp_path / "copies")
    command = [sys.executable, "-m", "tests.fixtures.faults.kill_points", "kill", *map(str, locations)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= {"shard": 20, "index": 40, "repaired": 40}[case]


def test_another_split_is_not_touched_while_one_is_half_changed(
    five_shards: RldsDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset, output = write_source(tmp_path / "source", shorten), tmp_path / "out"
    assert main(arguments(dataset, output)) == EXIT_DAMAGED
    shutil.copyfile(five_shards.shard(index=1, count=3), dataset.shard(index=1, count=3))
    conversion = dataset.conversion(output, ConvertConfig(policy=FramePolicy(size=None)))
    Journal(output / FOLDER).begin({**conversion.parameters, "source": conversion.source.fingerprint})
    actual = read_status(conversion, redone_stems={"train-00001-of-00003"})
    assert [job.stem for job in actual.pending_jobs] == ["train-00001-of-00003"]
    assert convert_shard(actual.pending_jobs[0], conversion.plan)
    with pytest.raises(FileNotFoundError, match="no manifest, so this conversion is not complete"):
        read_manifest(output / FOLDER)
    capsys.readouterr()
    refused = Result(main([*arguments(dataset, output), "--episodes", "val"]), *capsys.readouterr())
    assert refused.code == EXIT_USAGE
    advice = "run that one first, with --episodes train+val"
    assert f"interrupted while it made train-00001-of-00003 again; {advice}" in refused.error()
    assert main([*arguments(dataset, output), "--episodes", "train"]) == 0
    assert list(read_manifest(output / FOLDER).splits) == ["train", "val"]
    assert read_manifest(output / FOLDER).left_out == {}


@pytest.mark.long
def test_parts_are_not_cut_out_of_a_table_that_is_damaged(
    convert: Convert, five_shards: RldsDataset, tmp_path: Path
) -> None:
    dataset, output = write_source(tmp_path / "source", shorten), tmp_path / "other"
    assert convert(dataset=dataset, output=output).code == EXIT_DAMAGED
    shutil.copyfile(five_shards.shard(index=1, count=3), dataset.shard(index=1, count=3))
    table = output / FOLDER / "train" / "steps.arrow"
    flip(table, table.stat().st_size // 2)
    result = convert(dataset=dataset, output=output)
    assert result.code == EXIT_FAILED
    assert f"{table}: its SHA-256 is not the recorded one; remove it and run the same command again" in result.error()
    table.unlink()
    assert convert(dataset=dataset, output=output).code == 0


def test_complete_splits_that_an_earlier_version_recorded_are_the_same_conversion(
    convert: Convert, complete: Path, tmp_path: Path
) -> None:
    output = tmp_path / "other"
    assert convert("--episodes", "train", output=output).code == 0
    edit_manifest(output / FOLDER, lambda manifest: manifest["parameters"].update(episodes="train"))
    before = tree(output)
    again = convert("--episodes", "train", output=output)
    assert again.code == 0, again.err
    assert tree(output) == before
    assert convert("--episodes", "train[:1]", output=output).code == EXIT_USAGE
    assert convert("--episodes", "val", output=output).code == 0
    assert tree(output) == tree(complete)


def test_a_changed_registry_entry_is_told_with_the_command_that_applies_it(
    five_shards: RldsDataset, output: Path, complete: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = arguments(five_shards, output)
    config = five_shards.registry(control_frequency=10)
    assert main(command) == 0
    message = capsys.readouterr().err
    assert (
        f"warning: {output / FOLDER} was converted with another registry entry of demo (other control_frequency"
        in message
    )
    assert f"`pairstream reindex {output} --datasets demo --config {config}`" in message
    assert tree(output) == tree(complete)


def test_another_description_is_no_reason_to_reindex(
    five_shards: RldsDataset, output: Path, complete: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = arguments(five_shards, output)
    five_shards.registry(description="In other words.")
    assert main(command) == 0
    assert "warning" not in capsys.readouterr().err
    assert tree(output) == tree(complete)


def test_a_split_is_not_added_with_another_registry_entry(
    five_shards: RldsDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = arguments(five_shards, tmp_path / "out")
    assert main([*command, "--episodes", "val"]) == 0
    before = tree(tmp_path)
    five_shards.registry(
        state=[{"path": "observation/state", "dims": 1, "select": [0], "quantity": "other", "kind": "flag"}]
    )
    code = main([*command, "--episodes", "train"])
    result = Result(code, *capsys.readouterr())
    assert code == EXIT_USAGE
    assert "(other state)" in result.error()
    assert "pairstream reindex" in result.error()
    assert tree(tmp_path) == before


@pytest.mark.long
def test_labels_stay_when_a_split_is_added_or_mended_and_go_with_an_overwrite(
    five_shards: RldsDataset, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    assert main([*arguments(five_shards, output), "--episodes", "train"]) == 0
    add_labels(output, "demo", {"episode": [0], "value": [1.5]}, split="train")
    listed = list_labels(output, "demo")
    assert main(arguments(five_shards, output)) == 0
    assert list_labels(output, "demo") == listed
    for name in ("steps.arrow", "train-00001-of-00003.arrayrecord"):
        (output / FOLDER / "train" / name).unlink()
        assert main(arguments(five_shards, output)) == 0
        assert list_labels(output, "demo") == listed
    assert verify_root(output, jobs=1).ok
    assert main([*arguments(five_shards, output), "--overwrite"]) == 0
    assert list_labels(output, "demo") == {}
    assert not (output / FOLDER / "train" / "labels").exists()
    assert verify_root(output, jobs=1).ok
