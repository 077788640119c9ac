"""Pages fit a phone: none scrolls sideways, and what people read is neither cut nor out of sight."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from pairstream.browse.browsed_root import BrowsedRoot
from pairstream.browse.static import write_static
from tests.installed import needs
from tests.pairstream.browse.running_site import PATIENCE_S, Site

pytestmark = [pytest.mark.long, needs("playwright")]
WIDTH = 420
# A row may be drawn anew between two questions, so each asks once.
LEFT, RIGHT = (f"element => element.getBoundingClientRect().{side}" for side in ("left", "right"))
CUT = "element => element.scrollWidth > element.clientWidth"


@pytest.fixture
def phone(chromium: Any) -> Iterator[Any]:
    page = chromium.new_page(viewport={"width": WIDTH, "height": 900})
    page.set_default_timeout(PATIENCE_S * 1000)
    yield page
    page.close()


def page_width(page: Any) -> int:
    width: int = page.evaluate("document.documentElement.scrollWidth")
    return width


def test_names_and_values_of_curves_are_not_cut(phone: Any, site: Site) -> None:
    phone.goto(f"{site.address}episode/droid/train/1?step=1")
    rows = phone.locator("details", has_text="action (as the dataset has it)").first.locator(".ps-row")
    expect(rows.first).to_be_visible()
    texts = [span for row in rows.all() for span in (row.locator("span").first, row.locator("span").last)]
    assert len(texts) >= 14
    assert [text.inner_text() for text in texts if text.evaluate(CUT)] == []


def test_a_member_of_a_mixture_keeps_its_name_in_sight_while_its_numbers_scroll(phone: Any, site: Site) -> None:
    phone.goto(f"{site.address}mixture")
    expect(phone.locator("#members tr")).to_have_count(30)
    box = phone.locator(".scroll")
    row = phone.locator("#members tr", has_text="furniture_bench_dataset_converted_externally_to_rlds")
    assert row.locator("td.share").evaluate(RIGHT) <= WIDTH
    left = row.locator("td").first.evaluate(LEFT)
    box.evaluate("box => box.scrollLeft = 1000")
    assert box.evaluate("box => box.scrollLeft") > 0
    assert row.locator("td").first.evaluate(LEFT) == pytest.approx(left, abs=1)
    assert page_width(phone) <= WIDTH


def test_the_table_of_episodes_has_its_instructions_in_sight(phone: Any, site: Site) -> None:
    phone.goto(f"{site.address}dataset/bridge/train")
    text = phone.locator("tbody tr .instruction").first
    expect(text).to_be_visible()
    assert text.evaluate(RIGHT) <= WIDTH
    assert phone.get_by_role("tab", name="Findings").evaluate(RIGHT) <= WIDTH
    assert page_width(phone) <= WIDTH


def test_files_of_a_root_fit_too(phone: Any, tmp_path: Path, frames_root: Path) -> None:
    opened = BrowsedRoot(frames_root, marks=tmp_path / "marks.json")
    write_static(opened, tmp_path / "files", episodes=[("bridge", "train", 1)], doctor=False, most_bytes=300_000)
    for name in ("index", "bridge-train-1"):
        phone.goto(f"file://{tmp_path / 'files' / name}.html")
        expect(phone.locator("h1")).to_be_visible()
        assert page_width(phone) <= WIDTH, name
