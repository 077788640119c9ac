"""Loaders with random arguments give exactly what slow loops over the sources give."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.shared_folder import run_folder, shared_folder
from tests.reference.comparison import compare
from tests.reference.configurations import configuration
from tests.reference.source import convert_sources, make_sources

SHORT = 40
"""Configurations that `make test` compares."""
LONG = int(os.environ.get("PAIRSTREAM_CONFIGURATIONS", "1500"))
FIRST = int(os.environ.get("PAIRSTREAM_FIRST_CONFIGURATION", str(SHORT)))
"""Number of the first one of the long comparison, which prints it: others are tried with another number."""
SOURCES = make_sources()


@pytest.fixture(scope="session")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The sources, converted in every layout."""
    where = run_folder(tmp_path_factory) / "reference"
    with shared_folder(where, lambda folder: convert_sources(folder, SOURCES)) as folder:
        yield folder


def compare_all(numbers: range, roots: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    for number in numbers:
        given = configuration(number, SOURCES)
        try:
            found[compare(given, roots, workers=2 if number % 50 == 7 else 0)] += 1
        except Exception as error:
            error.add_note(f"configuration {number}: make_loader(**{given.arguments(roots)})")
            raise
    return found


def test_random_loaders_give_what_loops_over_the_sources_give(roots: Path) -> None:
    found = compare_all(range(SHORT), roots)
    assert found["compared"] > SHORT / 3


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_random_loaders_give_what_loops_over_the_sources_give(roots: Path) -> None:
    print(f"configurations {FIRST} to {FIRST + LONG - 1}")
    found = compare_all(range(FIRST, FIRST + LONG), roots)
    assert found["compared"] > LONG / 3
