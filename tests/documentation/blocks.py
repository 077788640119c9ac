"""The pages, and their fenced blocks of code, on data of tests."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path
from typing import Any

from tests.fixtures.command import REPOSITORY

PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *sorted(str(page.relative_to(REPOSITORY)) for page in (REPOSITORY / "docs").rglob("*.md")),
)
TURNS = 3


def blocks(page: str, kind: str) -> list[str]:
    """Return the fenced blocks of a kind, "" for those that name none, without the indentation of their fence."""
    text = (REPOSITORY / page).read_text()
    fences = re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.DOTALL | re.MULTILINE)
    return [re.sub(f"^{indent}", "", block, flags=re.MULTILINE) for indent, of, block in fences if of == kind]


def python_blocks() -> list[str]:
    """Return the blocks of Python of all pages."""
    return [code for page in PAGES for code in blocks(page, "python")]


def run_block(code: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run a block with these names, every loop of it for some turns, and return the names that it has then."""
    tree = ast.parse(code)
    for loop in ast.walk(tree):
        if isinstance(loop, ast.For):
            loop.iter = ast.Call(ast.Name("_some", ast.Load()), [loop.iter], [])
    names = {**names, "_some": lambda batches: itertools.islice(batches, TURNS)}
    exec(compile(ast.fix_missing_locations(tree), "documentation", "exec"), names)
    return names


def block_with(root: Path, mark: str, **changes: str) -> str:
    """Return the one block of Python that has a mark in it, on the tests' data; each change has to be one."""
    (code,) = [code for code in python_blocks() if mark in code]
    code = code.replace("build/demo/oxe", str(root))
    for old, new in changes.items():
        assert old in code, f"{old!r} is not in {code}"
        code = code.replace(old, new)
    return code
