"""The page of costs: what its arithmetic gives, and the command on a small sample."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.cost import DatasetWork, Place, cost, main, published
from convert.registry.registry import load_registry
from convert.sample.command import make_sample
from tests.bench.conftest import Refused

PLACE = Place(name="here", workers=2, cores_per_worker=4, read=1e9, busy=0.5, worker_hour=5.9)


def work(**fields: Any) -> DatasetWork:
    given: dict[str, Any] = {
        "name": "one",
        "codec": "PNG",
        "source_bytes": 10**12,
        "shards": 100,
        "episodes": 1000,
        "published_steps": 360_000,
        "seconds_per_step": 0.1,
        "seconds_per_shard": 0.0,
        "offset": 5,
        "bytes_out_per_pair": 1000.0,
        "bytes_per_step": 1.0,
    }
    return DatasetWork(**{**given, **fields})


def test_hours_are_core_seconds_over_busy_cores() -> None:
    found = cost([work(), work(seconds_per_step=0.3)], PLACE)
    assert found["core_hours"] == pytest.approx(40)
    assert found["hours"] == found["compute_hours"] == pytest.approx(40 / 8 / 0.5)


def test_slow_reading_is_what_it_takes() -> None:
    found = cost([work(source_bytes=36 * 10**13)], PLACE)
    assert found["hours"] == found["read_hours"] == pytest.approx(100)


def test_no_conversion_ends_before_its_longest_shard() -> None:
    assert cost([work(shards=1)], PLACE)["hours"] == pytest.approx(10)


def test_machines_are_paid_for_the_whole_time() -> None:
    assert cost([work()], PLACE)["dollars"] == pytest.approx(2.5 * 2 * 5.9)


def test_steps_that_nobody_publishes_follow_from_bytes() -> None:
    assert work(published_steps=None, bytes_per_step=10**6).steps == 10**6


def test_pairs_are_fewer_than_steps_by_the_offset_of_each_episode() -> None:
    assert work().pairs == 360_000 - 5 * 1000
    assert work(episodes=10**6).pairs == 0


def test_every_dataset_of_the_mixture_has_a_published_size() -> None:
    names = [selected.spec.name for selected in load_registry().resolve("oxe29")]
    sizes = published()
    assert sorted(sizes) == sorted(names)
    assert sum(size["bytes"] for size in sizes.values()) == pytest.approx(8.7e12, rel=0.01)
    assert sum(sum(load_registry().dataset(name).splits.values()) for name in names) == pytest.approx(2.33e6, rel=0.01)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cost")
    make_sample(root, [load_registry().dataset("rt1")], episodes=4, steps=12, shards=1, jobs=1)
    return root


def test_command_measures_a_sample_and_computes_again_from_what_it_printed(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--datasets", "rt1", "--repeat", "2"]
    assert main([*arguments, "--source", str(source), "--json"]) == 0
    printed = capsys.readouterr().out
    assert [place["dollars"] > 0 for place in json.loads(printed)["places"]] == [False, False, True]
    (entry,) = json.loads(printed)["datasets"]
    assert entry["work"]["codec"] == "JPEG"
    assert entry["work"]["seconds_per_step"] > 0
    assert entry["steps"] == pytest.approx(3_786_400, rel=0.01)
    (tmp_path / "cost.json").write_text(printed)
    assert main(["--measured", str(tmp_path / "cost.json"), "--core-hour", "1", "--dataflow-workers", "8"]) == 0
    shown = capsys.readouterr().out
    assert "| Dataflow | 32 |" in shown
    assert "$1 a Dataflow batch worker's core for an hour" in shown
    assert "assumed in November 2026, not looked up" in shown


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--source", "/none", "--datasets", "rt1"), 1, "/none"),
        (("--measured", "{file}"), 1, "not the output of --json of this command"),
        (("--measured", "{file}", "--busy", "2"), 2, "found '2', expected a number from 0.001 to 1"),
        (("--measured", "{file}", "--core-hour", "-1"), 2, "found '-1', expected a number from 0 to 1e+12"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    arguments: tuple[str, ...], code: int, told: str, refused: Refused, tmp_path: Path
) -> None:
    file = tmp_path / "cost.json"
    file.write_text("{}")
    found, line = refused(main, [argument.replace("{file}", str(file)) for argument in arguments])
    assert told in line
    assert found == code
