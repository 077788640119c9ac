"""A shard that is converted in ranges of its episodes becomes what it becomes at once, byte for byte."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from convert.errors import EXIT_DAMAGED
from convert.jobs import ShardJob
from convert.journal.journal import FOLDER, Journal
from convert.journal.status import ShardStatus
from convert.plan import Conversion, ConvertConfig
from convert.run.command import main
from convert.shard.images import FramePolicy
from convert.tasks.shard import convert_shard, join_pieces
from tests.fixtures.command import TIMEOUT, start, tree, wait_until, write_damaged_dataset
from tests.fixtures.datasets.rlds_dataset import RldsDataset, convert_dataset, demo_episode, write_dataset
from tests.fixtures.faults.gate import STATUSES, Gates
from tests.fixtures.same_conversion import arguments, lerobot_arguments

NATIVE = ConvertConfig(policy=FramePolicy(size=None))
STEM = "train-00000-of-00001"
IN_PIECES = "tests.fixtures.convert_in_pieces"


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut shards as small as those of the tests."""
    monkeypatch.setattr("convert.jobs._LEAST_BYTES", 1)
    monkeypatch.setattr("convert.jobs._LEAST_FRAMES", 1)


@pytest.fixture(scope="module", params=["rlds", "lerobot", "video"])
def command(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the command that converts a dataset, but for its output."""
    folder = tmp_path_factory.mktemp("source")
    if request.param == "rlds":
        options = arguments(write_damaged_dataset(folder), Path("out"))
        start = options.index("--output")
        return options[:start] + options[start + 2 :]
    return lerobot_arguments(folder) + (["--codec", "h264", "--gop", "3"] if request.param == "video" else [])


@pytest.fixture(scope="module")
def at_once(command: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the files of the dataset that is converted without cuts."""
    output = tmp_path_factory.mktemp("at-once")
    assert main([*command, "--output", str(output), "--num-workers", "1"]) == EXIT_DAMAGED
    return tree(output)


@pytest.fixture
def into(command: list[str], tmp_path: Path) -> list[str]:
    return [*command, "--output", str(tmp_path)]


def cut(conversion: Conversion) -> list[ShardJob]:
    """All jobs of a conversion of which some are pieces."""
    jobs = [piece for job in conversion.jobs for piece in job.pieces()]
    assert len(jobs) > len(conversion.jobs)
    return jobs


def test_pieces_give_what_shards_give(
    at_once: dict[str, str], in_pieces: None, into: list[str], tmp_path: Path
) -> None:
    assert main([*into, "--num-workers", "1"]) == EXIT_DAMAGED
    assert tree(tmp_path) == at_once


def test_tasks_that_share_the_pieces_of_a_shard_give_what_one_process_gives(
    at_once: dict[str, str], in_pieces: None, into: list[str], tmp_path: Path
) -> None:
    share = [*into, "--num-workers", "1", "--task-count", "3", "--task-index"]
    assert [main([*share, str(index)]) for index in (2, 0, 1)] == [0, 0, EXIT_DAMAGED]
    assert tree(tmp_path) == at_once


@pytest.mark.long
@pytest.mark.parametrize(
    "runner", [("--num-workers=2",), ("--num-workers=3",), ("--runner=DaskRunner", "--num-workers=2")]
)
def test_workers_that_share_the_pieces_of_a_shard_give_what_one_process_gives(
    at_once: dict[str, str], into: list[str], tmp_path: Path, runner: tuple[str, ...]
) -> None:
    with start(*into, *runner, module=IN_PIECES) as process:
        result = process.wait()
        assert result.code == EXIT_DAMAGED, result.err
    assert tree(tmp_path) == at_once


@pytest.mark.long
def test_tasks_that_share_the_pieces_at_the_same_time_give_what_one_process_gives(
    at_once: dict[str, str], into: list[str], tmp_path: Path
) -> None:
    share = [*into, "--num-workers=1", "--task-count=3"]
    with ExitStack() as stack:
        tasks = [stack.enter_context(start(*share, f"--task-index={index}", module=IN_PIECES)) for index in range(3)]
        codes = [task.wait().code for task in tasks]
    assert EXIT_DAMAGED in codes
    assert set(codes) <= {0, EXIT_DAMAGED}
    assert tree(tmp_path) == at_once


@pytest.mark.long
def test_a_conversion_that_is_killed_between_pieces_goes_on_with_the_others(
    at_once: dict[str, str], into: list[str], tmp_path: Path
) -> None:
    gates = Gates()
    for count in (1, 3):
        gates.close(STATUSES, after=4)
        with start(*into, "--num-workers=1", module=IN_PIECES, environment=gates.variables) as process:

            def reached(count: int = count) -> bool:
                return len(list(tmp_path.glob(f"*/*/{FOLDER}/{STATUSES}"))) >= count

            assert wait_until(reached, seconds=TIMEOUT, poll=0.01)
            process.kill()
    with start(*into, "--num-workers=2", module=IN_PIECES) as process:
        assert process.wait().code == EXIT_DAMAGED
    assert tree(tmp_path) == at_once


@pytest.fixture
def make(in_pieces: None, tmp_path: Path) -> Callable[[str], Conversion]:
    """Plan a conversion of one file of five episodes, and begin it."""
    episodes = [demo_episode(length, seed=length) for length in (6, 0, 9, 5, 7)]
    dataset = write_dataset(tmp_path / "source", splits={"train": [episodes]})

    def plan_it(name: str) -> Conversion:
        conversion = dataset.conversion(tmp_path / name, NATIVE)
        Journal(conversion.plan.output).begin(conversion.parameters)
        return conversion

    return plan_it


@pytest.mark.parametrize("seed", range(4))
def test_pieces_may_be_done_in_any_order(make: Callable[[str], Conversion], tmp_path: Path, seed: int) -> None:
    convert_dataset(make("at once"))
    conversion = make("out")
    jobs = cut(conversion)
    random.Random(seed).shuffle(jobs)
    for job in jobs[:-1]:
        status = convert_shard(job, conversion.plan)
        assert status is not None and status.piece == job.name
    joined = convert_shard(jobs[-1], conversion.plan)
    assert joined is not None and not joined.piece
    convert_dataset(conversion)
    assert tree(tmp_path / "out") == tree(tmp_path / "at once")


def test_only_chosen_episodes_are_cut(in_pieces: None, tmp_path: Path) -> None:
    episodes = [demo_episode(5, seed=number) for number in range(6)]
    dataset = write_dataset(tmp_path / "source", splits={"train": [episodes]})
    (job,) = dataset.conversion(tmp_path / "out", ConvertConfig(episodes="train[:1]+train[3:5]")).jobs
    ranges = [(0, 1), (3, 4), (4, 5)]
    assert [(piece.piece, piece.spans) for piece in job.pieces()] == [(episodes, (episodes,)) for episodes in ranges]


def test_the_files_of_the_pieces_are_gone_when_they_are_joined(make: Callable[[str], Conversion]) -> None:
    conversion = make("out")
    for job in cut(conversion):
        convert_shard(job, conversion.plan)
    left = {path.name for path in Path(conversion.plan.output, FOLDER).iterdir() if path.suffix != ".lock"}
    kinds = ("episodes", "steps", "records")
    assert left == {"parameters.json", f"{STEM}.status.json", *(f"{STEM}.{kind}.arrow" for kind in kinds)}


def test_a_finished_piece_is_not_done_again(make: Callable[[str], Conversion]) -> None:
    conversion = make("out")
    first, second = cut(conversion)[:2]
    convert_shard(first, conversion.plan)
    file = Path(conversion.plan.output, FOLDER, f"{first.name}.arrayrecord")
    before = file.stat().st_ino
    convert_shard(first, conversion.plan)
    convert_shard(second, conversion.plan)
    assert file.stat().st_ino == before


def test_a_shard_that_is_to_be_done_again_has_no_finished_piece(make: Callable[[str], Conversion]) -> None:
    conversion = make("out")
    for job in cut(conversion)[:-1]:
        convert_shard(job, conversion.plan)
    assert len(conversion.journal.finished()) == 4
    conversion.journal.forget({STEM})
    assert conversion.journal.finished() == set()


def test_pieces_that_a_kill_left_unjoined_are_joined_by_the_same_command(
    make: Callable[[str], Conversion], monkeypatch: pytest.MonkeyPatch
) -> None:
    conversion = make("out")
    jobs = cut(conversion)
    with Journal(conversion.plan.output).lock(STEM):
        assert convert_shard(jobs[-1], conversion.plan) is not None
        for job in jobs[:-1]:
            last = convert_shard(job, conversion.plan)
        assert last is None
    joined = convert_shard(jobs[0], conversion.plan)
    assert joined is not None and not joined.piece


def test_pieces_of_a_file_that_has_changed_since_are_made_again(
    make: Callable[[str], Conversion], tmp_path: Path
) -> None:
    conversion = make("out")
    jobs = cut(conversion)
    for job in jobs[:-1]:
        convert_shard(job, conversion.plan)
    source = RldsDataset(tmp_path / "source", "demo")
    episodes = [demo_episode(length, seed=10 + length) for length in (6, 0, 9, 5, 8)]
    write_dataset(tmp_path / "source", splits={"train": [episodes]})
    changed = source.conversion(tmp_path / "out", NATIVE)
    for job in cut(changed):
        joined = convert_shard(job, changed.plan)
    assert joined is not None and joined.entry.source_bytes == source.shard().stat().st_size
    expected = source.conversion(tmp_path / "expected", NATIVE)
    Journal(expected.plan.output).begin(expected.parameters)
    at_once = convert_shard(expected.jobs[0], expected.plan)
    assert at_once is not None and at_once.entry == joined.entry


def test_pieces_that_another_process_joins_and_removes_meanwhile_are_no_error(
    make: Callable[[str], Conversion], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it happens on a file system without locks."""
    conversion = make("out")
    jobs = cut(conversion)
    for job in jobs[:-1]:
        convert_shard(job, conversion.plan)

    def joined_elsewhere(pieces: Sequence[ShardStatus], journal: Journal, folder: Path) -> ShardStatus:
        status = join_pieces(pieces, journal, folder)
        journal.place(STEM, folder)
        journal.finish(status)
        journal.clear_pieces(STEM)
        return join_pieces(pieces, journal, folder)

    monkeypatch.setattr("convert.tasks.shard.join_pieces", joined_elsewhere)
    joined = convert_shard(jobs[-1], conversion.plan)
    assert joined is not None and not joined.piece


def test_a_damaged_piece_is_named_and_nothing_is_joined(make: Callable[[str], Conversion]) -> None:
    conversion = make("out")
    jobs = cut(conversion)
    for job in jobs[:-1]:
        convert_shard(job, conversion.plan)
    file = Path(conversion.plan.output, FOLDER, f"{jobs[0].name}.arrayrecord")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(Exception, match=f"{jobs[0].name}.*its SHA-256 is not the recorded one"):
        convert_shard(jobs[-1], conversion.plan)
    assert not Path(conversion.plan.output, "train").exists()
