"""The site of `make docs` in a browser: search finds pages, no page is wider than its window."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.command import REPOSITORY

playwright: Any = pytest.importorskip("playwright.sync_api")
LACKING = [name for name in ("mkdocs", "material", "mkdocstrings") if importlib.util.find_spec(name) is None]
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(LACKING), reason="`make docs` installs mkdocs"),
    pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is not installed"),
]
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "docs", "examples")
PACKAGES = ("stream", "pairstream", "convert")
FIRST_RESULTS = 3


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    (folder / "build/pages").mkdir(parents=True)
    for name in PAGES:
        (folder / "build/pages" / name).symlink_to(REPOSITORY / name)
    for name in PACKAGES:
        (folder / name).symlink_to(REPOSITORY / name)
    shutil.copy(REPOSITORY / "mkdocs.yml", folder)
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "--quiet"], cwd=folder, check=True)
    return folder / "build/site"


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """Serve the site as `make docs` does."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def page() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 420, "height": 900})
        opened.set_default_timeout(120_000)
        yield opened
        browser.close()


@pytest.mark.parametrize(
    ("words", "name"),
    [("action horizon", "policy"), ("wrist camera", "windows"), ("slurm", "cluster"), ("make_loader", "api")],
)
def test_search_finds_pages_and_asks_no_other_server(address: str, page: Any, words: str, name: str) -> None:
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.set_viewport_size({"width": 1400, "height": 900})
    page.goto(f"{address}/index.html")
    page.locator("input.md-search__input").click()
    page.keyboard.type(words)
    # Results of the first letters come before those of the words.
    page.wait_for_selector(f"a.md-search-result__link[href*='docs/{name}.html']", state="attached")
    assert [url for url in requests if not url.startswith((address, "data:", "blob:"))] == []


TASKS = {
    "check converted dataset": "convert",
    "held-out split": "train",
    "mixture weights": "mixtures",
    "delta actions": "actions",
    "denormalize robot": "train",
    "loss is NaN": "debugging",
    "resume workers": "train",
    "prove same batches": "debugging",
    "my own hdf5": "own-data",
    "export lerobot": "lerobot",
    "world model clips": "world-model",
    "advantage": "labels",
    "s3": "object-stores",
    "download part": "object-stores",
    "getting started": "tutorial",
}


def test_the_words_of_a_newcomer_lead_to_the_page_of_the_task(address: str, page: Any) -> None:
    page.set_viewport_size({"width": 1400, "height": 900})
    missed = []
    for words, name in TASKS.items():
        page.goto(f"{address}/index.html?q={words}")
        page.wait_for_selector(".md-search-result__item")
        results = page.locator(".md-search-result__item > a").all()[:FIRST_RESULTS]
        links = [link.get_attribute("href") for link in results]
        if not any(f"docs/{name}.html" in link for link in links):
            missed.append((words, links))
    assert missed == []


def test_no_page_is_wider_than_a_phone(site: Path, page: Any) -> None:
    wide = []
    for path in sorted(site.rglob("*.html")):
        page.goto(f"file://{path}")
        if page.evaluate("document.documentElement.scrollWidth > innerWidth + 1"):
            wide.append(path.name)
    assert wide == []
