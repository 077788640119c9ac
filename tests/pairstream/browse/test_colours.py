"""The colours of the pages are those of the system, or those chosen in the header, in a real browser."""

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
LIGHT, DARK = "rgb(250, 250, 251)", "rgb(20, 23, 28)"
PAGES = ("", "dataset/bridge/train", "mixture", "episode/droid/train/1")
"""Pages with and without NiceGUI."""
FIRST_COLOUR = """new MutationObserver(() => {
  if (document.body) window.firstColour ??= getComputedStyle(document.body).backgroundColor;
}).observe(document, {childList: true, subtree: true})"""
"""Keeps the background at the first moment at which the page has a body."""


@pytest.fixture
def dark_page(chromium: Any) -> Iterator[Any]:
    """A page of a browser on a dark system."""
    context = chromium.new_context(color_scheme="dark")
    context.set_default_timeout(PATIENCE_S * 1000)
    yield context.new_page()
    context.close()


def colour_of(page: Any) -> str:
    colour: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return colour


def is_dark_in_quasar(page: Any) -> bool:
    """Return whether the components of NiceGUI are dark."""
    is_dark: bool = page.evaluate("document.body.classList.contains('body--dark')")
    return is_dark


def test_a_choice_holds_on_all_pages_from_their_first_moment(dark_page: Any, site: Site) -> None:
    dark_page.add_init_script(FIRST_COLOUR)
    dark_page.goto(site.address)
    assert colour_of(dark_page) == DARK
    dark_page.get_by_label("colours").select_option("light")
    assert colour_of(dark_page) == LIGHT
    for address in PAGES:
        dark_page.goto(f"{site.address}{address}")
        expect(dark_page.get_by_label("colours")).to_have_value("light")
        assert dark_page.evaluate("window.firstColour") == LIGHT, address
        assert colour_of(dark_page) == LIGHT and not is_dark_in_quasar(dark_page)


def test_a_page_of_nicegui_changes_its_components_too_and_returns_to_the_system(dark_page: Any, site: Site) -> None:
    dark_page.goto(f"{site.address}dataset/bridge/train")
    select = dark_page.get_by_label("colours")
    expect(select).to_have_value("system")
    assert colour_of(dark_page) == DARK and is_dark_in_quasar(dark_page)
    select.select_option("light")
    assert colour_of(dark_page) == LIGHT and not is_dark_in_quasar(dark_page)
    dark_page.emulate_media(color_scheme="light")
    select.select_option("dark")
    assert colour_of(dark_page) == DARK and is_dark_in_quasar(dark_page)
    select.select_option("system")
    assert colour_of(dark_page) == LIGHT and not is_dark_in_quasar(dark_page)


def test_another_open_page_follows(dark_page: Any, site: Site) -> None:
    dark_page.goto(site.address)
    other = dark_page.context.new_page()
    other.goto(f"{site.address}run")
    other.get_by_label("colours").select_option("light")
    dark_page.wait_for_function("colour => getComputedStyle(document.body).backgroundColor === colour", arg=LIGHT)
    expect(dark_page.get_by_label("colours")).to_have_value("light")


def test_files_without_a_server_have_the_same_choice(dark_page: Any, tmp_path: Path, frames_root: Path) -> None:
    opened = BrowsedRoot(frames_root, marks=tmp_path / "marks.json")
    write_static(opened, tmp_path / "files", episodes=[("bridge", "train", 1)], doctor=False, most_bytes=300_000)
    dark_page.goto(f"file://{tmp_path}/files/bridge-train-1.html")
    assert colour_of(dark_page) == DARK
    dark_page.get_by_label("colours").select_option("light")
    assert colour_of(dark_page) == LIGHT
    dark_page.get_by_role("link", name="Overview").click()
    expect(dark_page.get_by_role("heading", name="Episodes")).to_be_visible()
    expect(dark_page.get_by_label("colours")).to_have_value("light")
    assert colour_of(dark_page) == LIGHT
