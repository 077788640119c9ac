"""A browser of the root in its own process, and Debian's Chromium to look at its pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pairstream.browse.browsed_root import BrowsedRoot
from tests.pairstream.browse.running_site import PATIENCE_S, Site, end_site, start_site

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="package")
def site(frames_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The 29 datasets in the layout ``frames``."""
    started_site = start_site(frames_root, tmp_path_factory.mktemp("marks") / "marks.json")
    yield started_site
    end_site(started_site)


@pytest.fixture(scope="package")
def opened(oxe_root: Path, tmp_path_factory: pytest.TempPathFactory) -> BrowsedRoot:
    """The 29 datasets in the layout ``pairs``, without a server."""
    return BrowsedRoot(oxe_root, marks=tmp_path_factory.mktemp("marks") / "marks.json")


@pytest.fixture(scope="package")
def chromium() -> Iterator[Any]:
    """A headless Chromium; a test that asks for it is skipped where there is none."""
    if CHROMIUM is None:
        pytest.skip("no chromium here; Debian's package is chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as running:
        playwright.expect.set_options(timeout=PATIENCE_S * 1000)
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE_S * 1000)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """An empty page that fails the test if a script fails or another host is asked for anything."""
    context = chromium.new_context(viewport={"width": 1400, "height": 900}, accept_downloads=True)
    new_page = context.new_page()
    new_page.set_default_timeout(PATIENCE_S * 1000)
    faults, urls = list[str](), list[str]()
    new_page.on("pageerror", lambda error: faults.append(str(error)))
    new_page.on("request", lambda asked: urls.append(asked.url))
    yield new_page
    context.close()
    near = ("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:", "file:")
    assert faults + [url for url in urls if not url.startswith(near)] == []
