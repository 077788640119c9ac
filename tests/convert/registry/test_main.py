"""``pairstream registry``, and its table in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from convert.errors import EXIT_USAGE
from convert.registry.command import main, to_markdown
from convert.registry.registry import load_registry

PAGE = Path(__file__).resolve().parents[3] / "docs" / "from-data-to-a-policy.md"


def test_the_page_has_the_table_of_the_registry(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--markdown"]) == 0
    table = capsys.readouterr().out.strip()
    assert table in PAGE.read_text(), "run `pairstream registry --markdown` and put the table into the page"
    assert len(table.splitlines()) == 2 + len(load_registry().datasets)


def test_some_datasets_are_chosen_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--datasets", "droid", "--markdown"]) == 0
    (row,) = capsys.readouterr().out.strip().splitlines()[2:]
    assert "3 ee_position: displacement, 1 is 0.075 m, base frame" in row
    assert "| 0 open, 1 closed |" in row


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_people_read_all_facts_of_the_table_in_a_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main([]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= min(columns, 100)
    registry = load_registry()
    rows = to_markdown(map(registry.dataset, registry.datasets)).splitlines()[2:]
    blocks = text.split("\n\n")
    for row, block in zip(rows, blocks, strict=True):
        facts = row.strip("| ").replace("`", "").replace("**", "").replace(" | ", "<br>").split("<br>")
        words = re.sub(r"\b(oxe|eef_delta|eef|joint|motion):", r"\1", " ".join(block.split()))
        assert [fact for fact in facts if " ".join(fact.split()) not in words] == []


def test_an_unknown_name_lists_the_closest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--datasets", "driod"]) == EXIT_USAGE
    assert "droid" in capsys.readouterr().err
