"""Outcome of verifying and loading a damaged root."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from convert.verify.command import verify_root
from stream.loader.digest import digest
from stream.loader.loader import Loader, make_loader
from stream.storage.errors import FormatError, StreamError

Loaded = Literal["raises", "raises without naming it", "same data", "WRONG", "another error"]
Replaced = Literal["replaced", "raises", "same data", "WRONG", "not deterministic", "not counted", "another error"]
_BAD = {"WRONG", "another error", "not deterministic", "not counted", "raises without naming it"}
_COLUMNS = ("is_first", "robot")
"""One column of the steps and one of the episodes, so that columns of all tables are read."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Findings about one damage.

    Attributes:
        found, found_deep: Whether ``convert.verify`` reports it, without and with ``--deep``.
        loaded: Result of a loader that raises at errors.
        replaced: Result of a loader with ``on_error="replace"``.
        told: First words of the loader's error.
    """

    found: bool
    found_deep: bool
    loaded: Loaded
    replaced: Replaced
    told: str

    @property
    def sound(self) -> bool:
        """Return whether the damage was found and no wrong data came out."""
        return self.found and self.found_deep and not {self.loaded, self.replaced} & _BAD


def read_all(root: Path, dataset: str) -> list[str]:
    """Return a hash of each sample of one epoch; raise the loader's errors."""
    loader = _open_loader(root, dataset, "raise")
    return [digest(loader.batch_at(step)) for step in range(loader.steps_per_epoch)]


def examine(root: Path, dataset: str, expected: Sequence[str], names: Sequence[str]) -> Outcome:
    """Verify and load a damaged root.

    Args:
        root: Root with one dataset.
        dataset: Name of the dataset.
        expected: Result of ``read_all`` before the damage.
        names: Names of which an error must contain one.
    """
    loaded, told = _load(root, dataset, expected, names)
    return Outcome(
        found=not verify_root(root, jobs=1).ok,
        found_deep=not verify_root(root, deep=True, jobs=1).ok,
        loaded=loaded,
        replaced=_replace(root, dataset, expected),
        told=told,
    )


def _open_loader(root: Path, dataset: str, on_error: Literal["raise", "replace"]) -> Loader:
    """Return a loader of single samples in the order of the files."""
    return make_loader(
        root, dataset, split="train", batch_size=1, threads=1, shuffle="none", columns=_COLUMNS, on_error=on_error
    )


def _load(root: Path, dataset: str, expected: Sequence[str], names: Sequence[str]) -> tuple[Loaded, str]:
    try:
        same = read_all(root, dataset) == expected
    except (StreamError, FormatError) as error:
        told = " ".join(str(error).replace(str(root), "ROOT").split())[:300]
        return ("raises" if any(name in told for name in names) else "raises without naming it"), told
    except Exception as error:
        return "another error", f"{type(error).__name__}: {error}"[:300]
    return ("same data" if same else "WRONG"), ""


def _replace(root: Path, dataset: str, expected: Sequence[str]) -> Replaced:
    try:
        found, again = (_read_replaced(root, dataset) for _ in range(2))
    except (StreamError, FormatError):
        return "raises"
    except Exception:
        return "another error"
    if again != found:
        return "not deterministic"
    if len(found) != len(expected):
        return "WRONG"
    if any(have != want and not count for (have, count), want in zip(found, expected, strict=True)):
        return "not counted"
    return "replaced" if any(count for _, count in found) else "same data"


def _read_replaced(root: Path, dataset: str) -> list[tuple[str, int]]:
    """Return a hash of each sample of one epoch, and the number of records replaced for it."""
    loader = _open_loader(root, dataset, "replace")
    found = []
    batches = iter(loader)
    try:
        for _ in range(loader.steps_per_epoch):
            before = loader.stats()["replaced"]
            found.append((digest(next(batches)), loader.stats()["replaced"] - before))
    finally:
        batches.close()
    return found
