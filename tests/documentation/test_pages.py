"""The pages as a whole: links lead somewhere, the site has every page, every block of Python has a test."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from tests.documentation.blocks import PAGES, python_blocks
from tests.fixtures.command import REPOSITORY
from tests.test_architecture import own_imports

MOST_LINES = {"README.md": 90, "CONTRIBUTING.md": 120}
MOST_WORDS = 800
FIRST_INSTALL = 15


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and mkdocs make them."""
    prose = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_block_of_python_is_run_by_a_test() -> None:
    tests = "".join(path.read_text() for path in (REPOSITORY / "tests").rglob("test_*.py"))
    marks = ["/scratch/oxe:200GB"]  # tests/stream/cache/test_in_place.py
    marks += [mark for _, mark in re.findall(r"""block_with\(\s*\w+,\s*(["'])(.+?)\1""", tests)]
    assert [code for code in python_blocks() if not any(mark in code for mark in marks)] == []


def test_links_between_pages() -> None:
    for page in PAGES:
        page_path = REPOSITORY / page
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page_path.read_text()):
            if "://" not in target:
                target_path = page_path.parent / target if target else page_path
                assert target_path.exists(), f"{page}: {target}"
                assert not anchor or anchor in _anchors(target_path), f"{page}: {target}#{anchor}"


def test_the_diagrams_are_those_that_the_command_draws() -> None:
    drawn = runpy.run_path(str(REPOSITORY / "docs/diagrams.py"))["DIAGRAMS"]
    files = {path.name: path.read_text() for path in (REPOSITORY / "docs").glob("diagram-*.svg")}
    assert files == {f"diagram-{name}.svg": draw().svg() for name, draw in drawn.items()}


@pytest.mark.parametrize("program", ["stream", "convert"])
def test_imports_go_down_in_the_drawing_of_packages(program: str) -> None:
    drawn = runpy.run_path(str(REPOSITORY / "docs/diagrams.py"))
    rows = [packages.split() for packages, _ in drawn[f"_{program.upper()}_ROWS"]]
    row_of = {package: row for row, packages in enumerate(rows) for package in packages}
    folders = {path.parent.name for path in (REPOSITORY / program).glob("*/__init__.py")}
    assert folders - {"configs"} == row_of.keys() - {"beam_jobs"}
    upward = []
    for module, imported in own_imports().items():
        package = module.split(".")[1] if module.startswith(f"{program}.") else module.split(".")[0]
        for name in imported:
            other = name.split(".")[1] if name.startswith(f"{program}.") else ""
            if package in row_of and other in row_of and package != other and row_of[other] <= row_of[package]:
                upward.append(f"{module} imports {name}")
    assert upward == []


def test_no_diagram_needs_a_script_of_another_server() -> None:
    assert [page for page in PAGES if "```mermaid" in (REPOSITORY / page).read_text()] == []


def test_every_page_is_in_the_site() -> None:
    site = (REPOSITORY / "mkdocs.yml").read_text()
    assert [page for page in PAGES if f" {page}\n" not in site] == []


@pytest.mark.parametrize("page", MOST_LINES)
def test_the_first_pages_stay_short(page: str) -> None:
    assert len((REPOSITORY / page).read_text().splitlines()) <= MOST_LINES[page]


def test_the_readme_is_read_in_a_minute() -> None:
    text = (REPOSITORY / "README.md").read_text()
    assert len(text.split()) <= MOST_WORDS
    assert "pip install" in "".join(text.splitlines()[:FIRST_INSTALL])
    assert text.count("![") == 1
