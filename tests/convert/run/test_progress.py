import io
import re
import time
from pathlib import Path

import pytest

from convert.journal.journal import Journal
from convert.plan import Conversion
from convert.run.progress import ShardProgress
from convert.tasks.shard import convert_shard
from stream.base import progress
from tests.fixtures.command import wait_until
from tests.fixtures.datasets.rlds_dataset import demo_episode, write_dataset

PAUSE = progress._PAUSE_OF_LINES


@pytest.fixture(autouse=True)
def _only_the_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no line come before the last one, however long a test takes."""
    monkeypatch.setattr(progress, "_PAUSE_OF_LINES", 1e6)


@pytest.fixture
def conversion(tmp_path: Path) -> Conversion:
    shards = [[demo_episode(8, seed=seed)] for seed in range(3)]
    created = write_dataset(tmp_path, splits={"train": shards}).conversion(tmp_path / "out")
    Journal(created.plan.output).begin(created.parameters)
    return created


def follow(conversion: Conversion, *, shards: int) -> str:
    """Return the output while this many shards of the conversion are done."""
    stream = io.StringIO()
    with ShardProgress([(job, conversion.plan.output) for job in conversion.jobs], stream=stream):
        for job in conversion.jobs[:shards]:
            convert_shard(job, conversion.plan)
    return stream.getvalue()


def test_at_the_end_a_line_says_how_many_shards_and_pairs_were_done(conversion: Conversion) -> None:
    shown = follow(conversion, shards=3)
    assert shown.startswith("3/3 shards, 18 pairs (")
    assert shown.endswith("s\n")
    assert shown.count("\n") == 1


def test_a_run_that_stops_early_says_what_is_left(conversion: Conversion) -> None:
    shown = follow(conversion, shards=2)
    assert shown.startswith("2/3 shards, 12 pairs (")
    assert ", ETA " in shown


def test_before_the_first_shard_there_is_no_eta(conversion: Conversion) -> None:
    shown = follow(conversion, shards=0)
    assert re.fullmatch(r"0/3 shards, 0 pairs \(0/s\), 0 B/s, [0-9:]+s?\n", shown)


def test_elsewhere_journals_are_listed_a_few_times_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute lasts 0.4 s here."""
    monkeypatch.setattr(progress, "_PAUSE_OF_LINES", PAUSE / 150)
    listed: list[str] = []
    real = Journal.finished

    def finished(journal: Journal) -> set[str]:
        listed.append(journal.output)
        return real(journal)

    monkeypatch.setattr(Journal, "finished", finished)
    shards = [[demo_episode(8, seed=seed)] for seed in range(2)]
    source = write_dataset(tmp_path, splits={"train": shards})
    outputs = [tmp_path / str(number) for number in range(10)]
    jobs = [(job, str(output)) for output in outputs for job in source.conversion(output).jobs]
    began = time.monotonic()
    with ShardProgress(jobs, stream=io.StringIO()):
        assert wait_until(lambda: len(listed) >= 4, seconds=60)
    minutes = (time.monotonic() - began) / (60 / 150)
    assert sorted(listed[-10:]) == sorted(map(str, outputs))
    assert len(listed[:-10]) <= 4 * minutes


def test_every_dataset_has_its_turn_while_the_largest_job_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_PAUSE_OF_LINES", 0.01)
    source = write_dataset(tmp_path, splits={"train": [[demo_episode(8)]]})
    created = [source.conversion(tmp_path / f"{number}") for number in range(5)]
    for conversion in created[1:]:
        Journal(conversion.plan.output).begin(conversion.parameters)
        convert_shard(conversion.jobs[0], conversion.plan)
    stream = io.StringIO()
    with ShardProgress([(item.jobs[0], item.plan.output) for item in created], stream=stream):
        assert wait_until(lambda: "4/5 shards" in stream.getvalue(), seconds=60)


def test_pieces_count_as_their_shard_when_it_is_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convert.jobs._LEAST_BYTES", 1)
    source = write_dataset(tmp_path, splits={"train": [[demo_episode(8, seed=seed) for seed in range(3)]]})
    conversion = source.conversion(tmp_path / "out")
    Journal(conversion.plan.output).begin(conversion.parameters)
    jobs = conversion.jobs[0].pieces()
    assert len(jobs) == 3
    for done, line in ((2, "0/1 shards, 12 pairs"), (3, "1/1 shards, 18 pairs")):
        for job in jobs[:done]:
            convert_shard(job, conversion.plan)
        stream = io.StringIO()
        with ShardProgress([(job, conversion.plan.output) for job in jobs], stream=stream):
            pass
        assert stream.getvalue().startswith(line)


def test_shards_of_other_tasks_are_not_counted(conversion: Conversion) -> None:
    for job in conversion.jobs:
        convert_shard(job, conversion.plan)
    stream = io.StringIO()
    with ShardProgress([(conversion.jobs[0], conversion.plan.output)], stream=stream):
        pass
    assert stream.getvalue().startswith("1/1 shards, 6 pairs")


def test_episodes_that_are_left_out_are_counted(tmp_path: Path) -> None:
    source = write_dataset(tmp_path, splits={"train": [[demo_episode(8), demo_episode(2)]]})
    conversion = source.conversion(tmp_path / "out")
    Journal(conversion.plan.output).begin(conversion.parameters)
    assert follow(conversion, shards=1).endswith(", 1 episodes left out\n")
