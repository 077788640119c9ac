"""Core hours of a conversion: what the arithmetic gives, and the command on a small sample."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.cost import DatasetWork, main, published
from convert.registry.registry import load_registry
from convert.sample.command import make_sample
from tests.bench.conftest import Refused


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


def test_core_hours_are_those_of_steps_and_shards() -> None:
    assert work().core_hours == pytest.approx(10)
    assert work(seconds_per_shard=36.0).core_hours == pytest.approx(11)


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


def test_command_measures_a_sample(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--datasets", "rt1", "--repeat", "2", "--source", str(source)]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (entry,) = found["datasets"]
    assert entry["work"]["codec"] == "JPEG"
    assert entry["work"]["seconds_per_step"] > 0
    assert entry["steps"] == pytest.approx(3_786_400, rel=0.01)
    assert found["core_hours"] == entry["core_hours"] > 0
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "In: 0.12 TB." in shown
    assert "| rt1 | JPEG | 119 | 87,212 | 3.79 |" in shown


def test_a_sample_that_is_missing_is_one_line(refused: Refused) -> None:
    code, line = refused(main, ["--source", "/none", "--datasets", "rt1"])
    assert code == 1
    assert "/none" in line
