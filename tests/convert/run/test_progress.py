import io
import time
from pathlib import Path

import pytest

from convert.journal.journal import Journal
from convert.plan import Conversion
from convert.run.progress import Progress
from convert.tasks.shard import convert_shard
from tests.fixtures.datasets.rlds_dataset import demo_episode, write_dataset


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def conversion(tmp_path: Path) -> Conversion:
    shards = [[demo_episode(8, seed=seed)] for seed in range(3)]
    made = write_dataset(tmp_path, splits={"train": shards}).conversion(tmp_path / "out")
    Journal(made.plan.output).begin(made.parameters)
    return made


def follow(conversion: Conversion, stream: io.StringIO, *, shards: int, seconds: float = 0.0) -> str:
    """Return the output while this many shards of the conversion are done."""
    with Progress([(job, conversion.plan.output) for job in conversion.jobs], stream=stream):
        for job in conversion.jobs[:shards]:
            convert_shard(job, conversion.plan)
        time.sleep(seconds)
    return stream.getvalue()


def test_at_the_end_a_line_says_how_many_shards_and_pairs_were_done(conversion: Conversion) -> None:
    shown = follow(conversion, io.StringIO(), shards=3)
    assert shown.startswith("3/3 shards, 18 pairs (")
    assert shown.endswith("s\n")
    assert shown.count("\n") == 1


def test_a_run_that_stops_early_says_what_is_left(conversion: Conversion) -> None:
    shown = follow(conversion, io.StringIO(), shards=2)
    assert shown.startswith("2/3 shards, 12 pairs (")
    assert ", ETA " in shown


def test_before_the_first_shard_there_is_no_eta(conversion: Conversion) -> None:
    shown = follow(conversion, io.StringIO(), shards=0)
    assert shown.startswith("0/3 shards, 0 pairs (0/s), 0 B/s, 0s")
    assert "ETA" not in shown


def test_on_a_terminal_the_line_is_renewed_in_place(conversion: Conversion) -> None:
    shown = follow(conversion, Terminal(), shards=3, seconds=1.2)
    assert shown.count("\r\x1b[2K") >= 2
    assert shown.count("\n") == 1


def test_elsewhere_lines_come_seldom(conversion: Conversion) -> None:
    assert follow(conversion, io.StringIO(), shards=1, seconds=1.2).count("shards") == 1


def test_shards_of_other_tasks_are_not_counted(conversion: Conversion) -> None:
    for job in conversion.jobs:
        convert_shard(job, conversion.plan)
    stream = io.StringIO()
    with Progress([(conversion.jobs[0], conversion.plan.output)], stream=stream):
        pass
    assert stream.getvalue().startswith("1/1 shards, 6 pairs")


def test_nothing_to_do_is_shown_as_such() -> None:
    stream = io.StringIO()
    with Progress([], stream=stream):
        pass
    assert stream.getvalue().startswith("0/0 shards, 0 pairs")
