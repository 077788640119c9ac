"""``pairstream registry``, and its table in the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from convert.errors import EXIT_USAGE
from convert.registry.command import main
from convert.registry.registry import load_registry

PAGE = Path(__file__).resolve().parents[3] / "docs" / "from-data-to-a-policy.md"


def test_the_page_has_the_table_of_the_registry(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    table = capsys.readouterr().out.strip()
    assert table in PAGE.read_text(), "run `pairstream registry` and put the table into the page"
    assert len(table.splitlines()) == 2 + len(load_registry().datasets)


def test_some_datasets_are_chosen_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--datasets", "droid"]) == 0
    (row,) = capsys.readouterr().out.strip().splitlines()[2:]
    assert "3 ee_position: displacement, 1 is 0.075 m, base frame" in row
    assert "| 0 open, 1 closed |" in row


def test_an_unknown_name_lists_the_closest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--datasets", "driod"]) == EXIT_USAGE
    assert "droid" in capsys.readouterr().err
