"""Programs for trainers that are in other environments: what they take from this package exists."""

from __future__ import annotations

import ast
import importlib
import inspect
import re

import pytest

import stream
from tests.documentation.blocks import PAGES, blocks
from tests.fixtures.command import REPOSITORY

PROGRAMS = [(page, code) for page in PAGES for code in blocks(page, "py")]


def test_each_page_of_a_trainer_has_a_program() -> None:
    pages = [page for page in PAGES if page.startswith("docs/trainers/")]
    assert pages == [page for page, _ in PROGRAMS]
    overview = (REPOSITORY / "docs/trainers.md").read_text()
    assert [page for page in pages if f"]({page.removeprefix('docs/')})" not in overview] == []


@pytest.mark.parametrize(("page", "code"), PROGRAMS, ids=[page for page, _ in PROGRAMS])
def test_names_that_a_program_imports_from_here_exist(page: str, code: str) -> None:
    imports = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if node.module and node.module.split(".")[0] == "stream"]
    assert ours
    for node in ours:
        module = importlib.import_module(str(node.module))
        for name in node.names:
            assert hasattr(module, name.name) or importlib.import_module(f"{node.module}.{name.name}")


@pytest.mark.parametrize(("page", "code"), PROGRAMS, ids=[page for page, _ in PROGRAMS])
def test_a_program_calls_functions_with_arguments_that_they_have(page: str, code: str) -> None:
    """Each call of a function of an adapter, or of ``make_loader``, names only arguments of its signature."""
    called = 0
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.Call):
            continue
        called_name = ast.unparse(node.func)
        if match := re.fullmatch(r"(lerobot|openpi|openvla|gr00t)\.(sample|steps|examples|statistics)", called_name):
            function = getattr(importlib.import_module(f"stream.adapters.{match[1]}"), match[2])
        elif called_name == "make_loader":
            function = stream.make_loader
        else:
            continue
        called += 1
        names = set(inspect.signature(function).parameters)
        assert {keyword.arg for keyword in node.keywords if keyword.arg} <= names, ast.unparse(node)
    assert called >= 2
