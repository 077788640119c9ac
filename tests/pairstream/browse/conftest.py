"""A browser of the root in its own process, and Debian's Chromium to look at its pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pairstream.browse.running_site import Site, end_site, start_site

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="package")
def site(frames_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The 29 datasets in the layout ``frames``."""
    started_site = start_site(frames_root, tmp_path_factory.mktemp("marks") / "marks.json")
    yield started_site
    end_site(started_site)


@pytest.fixture(scope="package")
def chromium() -> Iterator[Any]:
    """A headless Chromium; a test that asks for it is skipped where there is none."""
    if CHROMIUM is None:
        pytest.skip("no chromium here; Debian's package is chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """An empty page that fails the test if a script fails or another host is asked for anything."""
    context = chromium.new_context(viewport={"width": 1400, "height": 900}, accept_downloads=True)
    opened = context.new_page()
    opened.set_default_timeout(20_000)
    faults: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("request", lambda asked: faults.append(asked.url) if _is_far(asked.url) else None)
    yield opened
    context.close()
    assert faults == []


def _is_far(url: str) -> bool:
    return not url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:", "file:"))
