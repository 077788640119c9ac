"""A whole root names all of its datasets."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from convert.errors import SourceError
from convert.source.kinds import split_source
from convert.source.locations import JOIN
from convert.source.root.dataset import expand
from stream.format.names import MANIFEST_NAME
from tests.stream.index_root import write_dataset


@pytest.fixture
def roots(tmp_path: Path) -> list[Path]:
    """Two roots: of the datasets one and two, and of two and three."""
    result = [tmp_path / "a", tmp_path / "b"]
    for root, names in zip(result, (("one", "two"), ("two", "three")), strict=True):
        for name in names:
            write_dataset(root, name, {"train": [[6]]})
    return result


def test_a_root_is_each_of_its_datasets(roots: list[Path]) -> None:
    assert expand(str(roots[0]), []) == [f"{roots[0]}/one", f"{roots[0]}/two"]
    assert split_source(str(roots[0])) == ("root", str(roots[0]))


def test_of_two_roots_what_has_one_name_becomes_one(roots: list[Path]) -> None:
    a, b = roots
    assert sorted(expand(f"{a}{JOIN}{b}", [])) == sorted([f"{a}/one", f"{a}/two{JOIN}{b}/two", f"{b}/three"])


def test_the_folder_of_a_dataset_and_of_a_version_stay(roots: list[Path], tmp_path: Path) -> None:
    (version,) = (path.parent for path in (roots[0] / "one").glob(f"*/{MANIFEST_NAME}"))
    for location in (roots[0] / "one", version, tmp_path / "nothing", f"{roots[0] / 'one'}{JOIN}{roots[1]}"):
        assert expand(str(location), []) == [str(location)]
    assert expand("one", [str(roots[0])]) == ["one"]


def test_a_conversion_that_is_not_complete_is_not_left_out_silently(roots: list[Path]) -> None:
    shutil.rmtree(roots[1] / "two")
    (roots[1] / "two" / "0.1.0" / "train").mkdir(parents=True)
    with pytest.raises(SourceError, match="the conversion of two is not complete"):
        expand(str(roots[1]), [])
