"""Sources that are missing, incomplete or damaged: what the command says, and what it leaves."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorflow_datasets.proto import tf_example_pb2

from convert.errors import EXIT_DAMAGED, EXIT_FAILED, EXIT_USAGE
from convert.run.command import main
from stream.format.manifest import Manifest, read_manifest
from tests.fixtures.command import Result, flip, tree, with_corrupt_frame
from tests.fixtures.datasets.rlds_dataset import RldsDataset, demo_episode, demo_features, serialise, write_dataset

Convert = Callable[..., Result]

STEPS = 9
PAIRS = STEPS - 2


@pytest.fixture
def dataset(tmp_path: Path) -> RldsDataset:
    """Two shards with three episodes of nine steps each, seven pairs an episode."""
    shards = [[demo_episode(STEPS, seed=3 * shard + i) for i in range(3)] for shard in range(2)]
    return write_dataset(tmp_path / "source", splits={"train": shards})


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def convert(dataset: RldsDataset, output: Path, capsys: pytest.CaptureFixture[str]) -> Convert:
    """Runs the command in this process."""

    def run(*arguments: str, source: Path = dataset.root, datasets: str = "demo", **fields: object) -> Result:
        config = dataset.registry(**fields)
        common = ["--datasets", datasets, "--source", str(source), "--output", str(output), "--config", str(config)]
        code = main([*common, "--num-workers", "1", "--image-size", "native", *arguments])
        return Result(code, *capsys.readouterr())

    return run


def manifest(output: Path) -> Manifest:
    return read_manifest(output / "demo" / "1.0.0")


def quarantine(output: Path) -> list[tuple[str, int, int | None]]:
    """Return reason, episode and step of each entry."""
    lines = (output / "demo" / "1.0.0" / "quarantine.jsonl").read_text().splitlines()
    return [(entry["reason"], entry["episode"], entry["step"]) for entry in map(json.loads, lines)]


def assert_refused(result: Result, output: Path) -> str:
    assert result.code == EXIT_USAGE
    assert not output.exists()
    return result.error()


def assert_incomplete(result: Result, output: Path) -> str:
    assert result.code == EXIT_FAILED
    assert not list(output.rglob("dataset.json"))
    assert not list(output.rglob("*.tmp"))
    return result.error()


def test_source_that_does_not_exist_is_named(convert: Convert, output: Path, tmp_path: Path) -> None:
    error = assert_refused(convert(source=tmp_path / "nowhere"), output)
    assert error == f"error: no such source: {tmp_path / 'nowhere'} (looked for demo/1.0.0 below it)"


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


BROKEN: dict[str, tuple[Callable[[RldsDataset], object], str]] = {
    "no folder": (
        lambda dataset: (dataset.root / "demo").rename(dataset.root / "demos"),
        "dataset demo 1.0.0 is in none of the sources: tried {path}.*did you mean 'demos'",
    ),
    "another version": (
        lambda dataset: dataset.path.rename(dataset.path.parent / "1.0.1"),
        "/demo has version 1.0.1, not 1.0.0.*--config",
    ),
    "no shard": (
        lambda dataset: dataset.shard(index=1, count=2).unlink(),
        "{path}: 1 of 2 files of split train are missing: demo-train.tfrecord-00001-of-00002",
    ),
    "no features": (
        lambda dataset: (dataset.path / "features.json").unlink(),
        "{path}: has dataset_info.json but no features.json",
    ),
    "half of features": (
        lambda dataset: shorten(dataset.path / "features.json"),
        r"{path}/features.json: not a JSON file \(",
    ),
    "half of info": (
        lambda dataset: shorten(dataset.path / "dataset_info.json"),
        r"{path}/dataset_info.json: not a JSON file \(",
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_broken_source_is_refused_with_its_place(
    convert: Convert, dataset: RldsDataset, output: Path, broken: str
) -> None:
    damage, message = BROKEN[broken]
    damage(dataset)
    assert re.search(message.format(path=dataset.path), assert_refused(convert(), output))


def test_dataset_without_episodes_is_refused(convert: Convert, output: Path, tmp_path: Path) -> None:
    empty = write_dataset(tmp_path / "empty", splits={"train": [[]]})
    error = assert_refused(convert(source=empty.root), output)
    assert error == f"error: {empty.path}: no split has any episode (splits: train: 0 episodes)"


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def flip_second_length(path: Path) -> None:
    flip(path, 16 + int.from_bytes(path.read_bytes()[:8], "little") + 1)


@pytest.mark.parametrize(
    ("damage", "episodes"),
    [
        pytest.param(lambda path: cut(path, -100), [2], id="truncated", marks=pytest.mark.long),
        pytest.param(lambda path: cut(path, 5), [0, 1, 2], id="five bytes left", marks=pytest.mark.long),
        pytest.param(lambda path: flip(path, 500), [0], id="flipped byte of a record"),
        pytest.param(flip_second_length, [1, 2], id="flipped byte of a length"),
    ],
)
def test_damaged_file_is_converted_as_far_as_it_can_be_read(
    convert: Convert, dataset: RldsDataset, output: Path, damage: Callable[[Path], None], episodes: list[int]
) -> None:
    damage(dataset.shard(count=2))
    result = convert()
    assert result.code == EXIT_DAMAGED
    lost = len(episodes)
    assert f"complete, but damaged input was left out: demo ({lost}); see quarantine.jsonl" in result.error()
    assert manifest(output).left_out == {"unreadable": lost}
    assert manifest(output).records == (6 - lost) * PAIRS
    assert quarantine(output) == [("unreadable", episode, None) for episode in episodes]


CORRUPT = with_corrupt_frame(serialise(demo_features(), demo_episode(STEPS, seed=1)), 4)


def without_state() -> bytes:
    record = tf_example_pb2.Example.FromString(serialise(demo_features(), demo_episode(STEPS)))
    del record.features.feature["steps/observation/state"]
    return bytes(record.SerializeToString())


@pytest.mark.parametrize(
    ("record", "left_out", "listed", "lost_pairs"),
    [
        (CORRUPT, {"corrupt_frame": 1, "pair_of_corrupt_frame": 2}, ("corrupt_frame", 1, 4), 2),
        (b"nonsense", {"malformed": 1}, ("malformed", 1, None), PAIRS),
        (without_state(), {"missing_feature": 1}, ("missing_feature", 1, None), PAIRS),
    ],
    ids=["corrupt frame", "no example", "no state"],
)
def test_damaged_episode_loses_no_other(
    convert: Convert,
    output: Path,
    tmp_path: Path,
    record: bytes,
    left_out: dict[str, int],
    listed: tuple[str, int, int | None],
    lost_pairs: int,
) -> None:
    damaged = write_dataset(tmp_path / "damaged", splits={"train": [[demo_episode(STEPS), record]]})
    result = convert(source=damaged.root)
    assert result.code == EXIT_DAMAGED
    assert "demo (1)" in result.error()
    assert manifest(output).left_out == left_out
    assert manifest(output).records == 2 * PAIRS - lost_pairs
    assert quarantine(output) == [listed]


@pytest.mark.long
def test_healthy_episodes_that_are_too_short_are_counted_and_no_error(
    convert: Convert, output: Path, tmp_path: Path
) -> None:
    splits = {"train": [[demo_episode(2), demo_episode(0), demo_episode(STEPS)]]}
    result = convert(source=write_dataset(tmp_path / "short", splits=splits).root)
    assert result.code == 0
    assert manifest(output).left_out == {"empty": 1, "too_short": 1}
    assert quarantine(output) == [("too_short", 0, None), ("empty", 1, None)]


@pytest.mark.long
def test_damaged_dataset_stays_damaged_when_the_command_is_run_again(
    convert: Convert, dataset: RldsDataset, output: Path
) -> None:
    flip(dataset.shard(count=2), 500)
    first = convert()
    before = tree(output)
    second = convert()
    assert (second.code, second.error()) == (EXIT_DAMAGED, first.error())
    assert tree(output) == before


@pytest.mark.parametrize(
    ("damage", "reason"),
    [("truncated", "ends inside record 2"), ("flipped", "wrong checksum of record 0"), ("length", "wrong checksum")],
)
def test_on_error_fail_stops_and_names_file_and_episode(
    convert: Convert, dataset: RldsDataset, output: Path, damage: str, reason: str
) -> None:
    path = dataset.shard(index=1, count=2)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    else:
        flip(path, {"flipped": 500, "length": 1}[damage])
    error = assert_incomplete(convert("--on-error", "fail"), output)
    assert str(path) in error
    assert "episode" in error
    assert reason in error
    assert "--on-error quarantine" in error


def test_on_error_fail_stops_at_a_corrupt_frame_and_names_the_step(
    convert: Convert, output: Path, tmp_path: Path
) -> None:
    damaged = write_dataset(tmp_path / "damaged", splits={"train": [[demo_episode(STEPS), CORRUPT]]})
    error = assert_incomplete(convert("--on-error", "fail", source=damaged.root), output)
    assert "episode 1 step 4: corrupt_frame" in error


@pytest.mark.long
def test_quarantine_finishes_what_on_error_fail_stopped(convert: Convert, dataset: RldsDataset, output: Path) -> None:
    flip(dataset.shard(count=2), 500)
    assert convert("--on-error", "fail").code == EXIT_FAILED
    assert convert().code == EXIT_DAMAGED
    assert manifest(output).records == 5 * PAIRS
    assert not (output / "demo" / "1.0.0" / ".convert").exists()


def test_offset_longer_than_every_episode_of_a_split_is_an_error_that_says_how_long_they_are(
    convert: Convert, output: Path, tmp_path: Path
) -> None:
    splits = {"train": [[demo_episode(STEPS)]], "val": [[demo_episode(3)], [demo_episode(2)]]}
    error = assert_incomplete(
        convert("--offset", "3", source=write_dataset(tmp_path / "short", splits=splits).root), output
    )
    assert error == (
        "error: demo: split val gives no pair at offset 3: its longest episode has 3 steps, a pair takes 4; give a "
        "smaller --offset with --overwrite, or leave the split out with --episodes"
    )
