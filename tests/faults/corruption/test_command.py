"""The matrix of damages in short: some ways, every region of every file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.bench.conftest import Refused
from tests.faults.corruption.command import DATASET, KINDS, Cell, Outcome, format_markdown, main, run_matrix
from tests.faults.corruption.regions import find_regions

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def older(oxe_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another dataset in the place of an older conversion of the same."""
    folder = tmp_path_factory.mktemp("older")
    shutil.copytree(oxe_root / "kuka", folder / DATASET)
    return folder


def test_nothing_wrong_comes_out_of_a_flipped_bit_in_any_region(oxe_root: Path, older: Path) -> None:
    cells = run_matrix(oxe_root, older, kinds=["episodes", "manifest"], damages=["one bit flipped"])
    assert len(cells) >= 20
    assert [cell for cell in cells if not cell.outcome.sound] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_region_that_is_damaged_is_found_and_nothing_wrong_comes_out(
    oxe_root: Path, older: Path, kind: str
) -> None:
    cells = run_matrix(oxe_root, older, kinds=[kind])
    assert len(cells) >= 30
    assert [cell for cell in cells if not cell.outcome.sound] == []
    if kind == "arrayrecord":
        assert "replaced" in {cell.outcome.replaced for cell in cells}


def test_a_region_lies_inside_its_file_and_apart_from_the_others(oxe_root: Path) -> None:
    (folder,) = (oxe_root / DATASET).iterdir()
    for path in sorted((folder / "train").iterdir()):
        kind = "arrayrecord" if path.suffix == ".arrayrecord" else path.stem
        regions = find_regions(path, kind)
        assert len(regions) >= 5
        assert all(0 <= region.start < region.stop <= path.stat().st_size for region in regions)
        assert len({region.name for region in regions}) == len(regions)


def test_what_is_wrong_shows_in_the_table() -> None:
    outcome = Outcome(found=True, found_deep=False, loaded="WRONG", replaced="not counted", told="")
    assert not outcome.sound
    table = format_markdown([Cell("steps", "magic", "zeroed", outcome)])
    assert "| steps | magic | 1 | 1 | 0 | WRONG 1 | not counted 1 |" in table
    assert "1 damages, 1 of them with a wrong outcome" in table


def test_an_unknown_file_is_refused(refused: Refused) -> None:
    code, line = refused(main, ["--kinds", "frames"])
    assert code == 2 and "--kinds: found 'frames', expected one of arrayrecord" in line
