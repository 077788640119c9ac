"""The site of `make docs` in a browser: search finds pages, no page is wider than its window."""

from __future__ import annotations

import functools
import importlib.util
import io
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

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
FIRST = {"quantiles": "train", "resume training": "train", "view episode": "browse"}
"""Words whose first result has to be the page that answers."""
CONTRASTS = """() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const over = ([r, g, b, a = 1], ground) => [r, g, b].map((value, at) => a * value + (1 - a) * ground[at]);
  const light = (colour) => colour.map((value) => value / 255)
    .map((value) => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0);
  const contrasts = {};
  for (const piece of document.querySelectorAll(".highlight code span[class]")) {
    if (!piece.textContent.trim() || piece.children.length) continue;
    const ground = numbers(getComputedStyle(piece.closest("code")).backgroundColor).slice(0, 3);
    const lights = [light(over(numbers(getComputedStyle(piece).color), ground)), light(ground)].sort((a, b) => a - b);
    contrasts[piece.className] = (lights[1] + 0.05) / (lights[0] + 0.05);
  }
  return contrasts;
}"""
"""Contrast of each kind of piece of code with its ground, by class."""


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


def test_the_first_result_is_the_page_that_answers(address: str, page: Any) -> None:
    page.set_viewport_size({"width": 1400, "height": 900})
    first_links = {}
    for words in FIRST:
        page.goto(f"{address}/index.html?q={words}")
        page.wait_for_selector(".md-search-result__item")
        first_links[words] = page.locator(".md-search-result__item > a").first.get_attribute("href")
    assert [words for words, name in FIRST.items() if f"docs/{name}.html" not in first_links[words]] == [], first_links


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_code_has_enough_contrast(address: str, page: Any, colours: str) -> None:
    page.emulate_media(color_scheme=colours)
    page.goto(f"{address}/docs/train.html")
    page.wait_for_timeout(500)  # the theme fades from light to dark
    contrasts = page.evaluate(CONTRASTS)
    assert len(contrasts) > 8 and {"c1", "o", "p"} <= contrasts.keys()
    assert {kind: contrast for kind, contrast in contrasts.items() if contrast < 4.5} == {}


def test_tabs_and_the_line_at_the_foot_are_not_faint(address: str, page: Any) -> None:
    page.set_viewport_size({"width": 1400, "height": 900})
    page.goto(f"{address}/docs/train.html")
    # White on the theme's teal and black: 4.5 needs 0.9 of it in the tabs, and 0.46 at the foot.
    opacities = page.evaluate(
        "[...document.querySelectorAll('.md-tabs__link')].map(link => getComputedStyle(link).opacity)"
    )
    assert min(map(float, opacities)) >= 0.9
    colour = page.evaluate("getComputedStyle(document.querySelector('.md-copyright')).color")
    assert float(re.findall(r"[\d.]+", colour)[3]) > 0.5


def test_wide_tables_are_reached_and_moved_by_the_keyboard(address: str, page: Any) -> None:
    page.goto(f"{address}/docs/from-data-to-a-policy.html")
    table = page.get_by_role("region", name="Table: The datasets")
    assert table.get_attribute("tabindex") == "0"  # Chromium would reach it without, other browsers do not
    table.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("document.activeElement.scrollLeft > 0")
    page.goto(f"{address}/docs/install.html")
    page.set_viewport_size({"width": 1400, "height": 900})
    page.wait_for_function("!document.querySelector('.md-typeset__scrollwrap[tabindex]')")


def test_diagrams_are_dark_in_dark_pages(address: str, page: Any) -> None:
    brightness = {}
    for colours in ("light", "dark"):
        page.emulate_media(color_scheme=colours)
        page.goto(f"{address}/docs/architecture.html")
        picture = page.locator("img[src$='diagram-programs.svg']")
        picture.scroll_into_view_if_needed()
        page.wait_for_timeout(500)
        brightness[colours] = np.asarray(Image.open(io.BytesIO(picture.screenshot()))).mean()
    assert brightness["light"] > 200 and brightness["dark"] < 90


def test_no_page_is_wider_than_a_phone(site: Path, page: Any) -> None:
    wide = []
    for path in sorted(site.rglob("*.html")):
        page.goto(f"file://{path}")
        if page.evaluate("document.documentElement.scrollWidth > innerWidth + 1"):
            wide.append(path.name)
    assert wide == []
