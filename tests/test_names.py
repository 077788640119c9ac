"""The names that the packages bind say what a thing is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("beam_jobs", "bench", "convert", "pairstream", "stream")

EMPTY = {
    *(
        "again",
        "begun",
        "blank",
        "both",
        "each",
        "found",
        "given",
        "gone",
        "here",
        "hole",
        "known",
        "made",
        "one",
        "ones",
    ),
    *("other", "others", "ours", "own", "place", "places", "rest", "room", "several", "sound", "spare", "stay", "such"),
    *("taken", "theirs", "there", "these", "thing", "things", "those", "told", "wanted", "where", "whole"),
}
"""Words that name nothing: a reader has to look up what they hold."""

FITTING = {
    # True if the rest of the file cannot be read either.
    ("convert.errors", "__init__", "rest")
}
"""Module, function and name where an empty word fits."""

MOST_EMPTY = 3
"""Empty names of 1,000 that are bound."""
LEAST_LETTERS = 7
"""Mean length of the names that are bound."""


def bindings(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the function and the name of each variable and parameter that a file binds."""

    def visit(node: ast.AST, function: str) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from visit(child, child.name)
                continue
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                yield function, child.id
            elif isinstance(child, ast.arg) and child.arg not in ("self", "cls"):
                yield function, child.arg
            yield from visit(child, function)

    return visit(ast.parse(path.read_text()), "")


def bound_names() -> list[tuple[str, str, str]]:
    """Return module, function and name of all bindings but those of underscores, which are not used."""
    return [
        (".".join(path.relative_to(REPOSITORY).with_suffix("").parts), function, name)
        for package in PACKAGES
        for path in sorted((REPOSITORY / package).rglob("*.py"))
        for function, name in bindings(path)
        if name.strip("_")
    ]


def test_few_names_are_empty() -> None:
    names = bound_names()
    empty = [entry for entry in names if entry[2].strip("_") in EMPTY and entry not in FITTING]
    assert len(empty) * 1000 < MOST_EMPTY * len(names), "\n".join(map(" ".join, empty))
    assert set(FITTING) <= set(names), "FITTING lists names that no longer exist"


def test_names_have_letters_enough() -> None:
    letters = [len(name) for *_, name in bound_names()]
    assert sum(letters) / len(letters) >= LEAST_LETTERS
