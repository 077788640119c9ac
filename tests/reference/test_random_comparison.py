"""Loaders with random arguments give exactly what slow loops over the sources give."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stream.batch import assemble
from stream.order import sample_run as segment
from tests.fixtures.shared_folder import run_folder, shared_folder
from tests.reference.comparison import compare
from tests.reference.configurations import PLAIN, Configuration, configuration
from tests.reference.samples import Member
from tests.reference.source import CODEC_ROOTS, convert_sources, make_sources

SHORT = 40
"""Configurations that `make test` compares."""
LONG = int(os.environ.get("PAIRSTREAM_CONFIGURATIONS", "2000"))
FIRST = int(os.environ.get("PAIRSTREAM_FIRST_CONFIGURATION", str(SHORT)))
"""Number of the first one of the long comparison, which prints it: others are tried with another number."""
SOURCES = make_sources()


@pytest.fixture(scope="session")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder_path = run_folder(tmp_path_factory) / "reference"
    with shared_folder(folder_path, lambda folder: convert_sources(folder, SOURCES)) as folder:
        yield folder


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a few samples, so that every loader has several."""
    monkeypatch.setattr(segment, "_CHUNK", 7)
    monkeypatch.setattr(assemble, "_RUN", 3)


def compare_all(numbers: range, roots: Path) -> Counter[str]:
    counts: Counter[str] = Counter()
    for number in numbers:
        drawn = configuration(number, SOURCES)
        try:
            counts[compare(drawn, roots, workers=2 if number % 50 == 7 else 0)] += 1
        except Exception as error:
            error.add_note(f"configuration {number}: make_loader(**{drawn.arguments(roots)})")
            raise
    return counts


def test_random_loaders_give_what_loops_over_the_sources_give(roots: Path) -> None:
    counts = compare_all(range(SHORT), roots)
    assert counts["compared"] > SHORT / 3


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize(
    "chosen",
    [
        {"steps": ["last"]},
        {"steps": ["-2..1"]},
        {"steps": [0, "0.3s", "-0.3s"]},
        {"steps": ["last", -1], "cameras": ["primary"], "num_epochs": 1},
        {"steps": ["goal", "0..3"], "edges": "repeat", "samples_per_episode": 3},
        {"steps": [-2, 0, 3], "between": "frames", "edges": "repeat", "times": True},
        {"steps": [-2, 0, 3], "between": "frames", "edges": "repeat", "reduce": "mean"},
        {"steps": [-3, 1, 2], "between": "frames", "edges": "repeat", "reduce": "sum", "num_epochs": 1},
        {"steps": ["-0.3s", 0, "0.3s"], "between": "frames", "reduce": "first", "times": True},
        {"where": [("reward", "!=", 0.1)], "shuffle": "none"},
        {"where": [("language", "not in", ["wipe the table"])], "shuffle": "block:4", "num_epochs": 2},
    ],
    ids=str,
)
def test_rare_combinations_give_what_loops_over_the_sources_give(
    name: str, chosen: dict[str, Any], roots: Path
) -> None:
    member = Member(name, SOURCES[name], "frames", "train")
    without_rate = SOURCES[name].rate is None and "0.3s" in chosen.get("steps", ())
    size = (12, 21) if name == "delta" else None
    drawn = Configuration(1, "frames", (member,), (), {**PLAIN, **chosen, "size": size}, 6)
    assert compare(drawn, roots) == ("refused" if without_rate else "compared")


@pytest.mark.parametrize("root", CODEC_ROOTS)
@pytest.mark.parametrize("fit", ["stretch", "pad"])
def test_frames_of_several_sizes_are_decoded_in_any_order(root: str, fit: str, roots: Path) -> None:
    chosen = {"steps": [0, "-1..1"], "edges": "repeat", "size": (12, 21), "fit": fit}
    drawn = Configuration(1, root, (Member("delta", SOURCES["delta"], root, "train"),), (), {**PLAIN, **chosen}, 6)
    assert compare(drawn, roots) == "compared"


@pytest.mark.parametrize("cameras", [None, "primary", ["primary", "wrist"]])
def test_members_with_fewer_frames_and_cameras_are_padded(cameras: Any, roots: Path) -> None:
    members = (Member("few", SOURCES["alpha"], "frames", "train"), Member("many", SOURCES["beta"], "clips", "train"))
    drawn = Configuration(1, "frames", members, (), {**PLAIN, "cameras": cameras}, 6)
    assert compare(drawn, roots) == "compared"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_random_loaders_give_what_loops_over_the_sources_give(roots: Path) -> None:
    print(f"configurations {FIRST} to {FIRST + LONG - 1}")
    counts = compare_all(range(FIRST, FIRST + LONG), roots)
    assert counts["compared"] > LONG / 3
