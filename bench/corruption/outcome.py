"""What verifying and loading make of a damaged root."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from convert.verify.command import verify_root
from stream.loader.digest import digest
from stream.loader.loader import Loader, make_loader
from stream.storage.errors import FormatError, StreamError

Loaded = Literal["raises", "raises without naming it", "same data", "WRONG", "another error"]
Replaced = Literal["replaced", "raises", "same data", "WRONG", "not deterministic", "not counted", "another error"]
_COLUMNS = ("is_first", "robot")
"""One of the steps and one of the episodes, so that columns of all tables are read."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """found, found_deep: whether ``convert.verify`` reports it. loaded: what a loader does that raises; replaced: one
    with ``on_error="replace"``. told: the first words of an error."""

    found: bool
    found_deep: bool
    loaded: Loaded
    replaced: Replaced
    told: str

    @property
    def sound(self) -> bool:
        """Whether nothing wrong came out and everything was found."""
        bad = {"WRONG", "another error", "not deterministic", "not counted", "raises without naming it"}
        return self.found and self.found_deep and not {self.loaded, self.replaced} & bad


def open_loader(root: Path, dataset: str, on_error: Literal["raise", "replace"]) -> Loader:
    """A loader of single samples in the order of the files."""
    return make_loader(
        root,
        dataset,
        split="train",
        batch_size=1,
        threads=1,
        shuffle="none",
        columns=_COLUMNS,
        on_error=on_error,
    )


def read_all(root: Path, dataset: str) -> list[str]:
    """A hash of each sample of one epoch; raises what the loader raises."""
    loader = open_loader(root, dataset, "raise")
    return [digest(loader.batch_at(step)) for step in range(loader.steps_per_epoch)]


def read_replaced(root: Path, dataset: str) -> tuple[list[str], list[int]]:
    """A hash of each sample of one epoch, and how many records were replaced before each was there."""
    loader = open_loader(root, dataset, "replace")
    found, counts = [], []
    batches = iter(loader)
    try:
        for _ in range(loader.steps_per_epoch):
            before = loader.stats()["replaced"]
            found.append(digest(next(batches)))
            counts.append(loader.stats()["replaced"] - before)
    finally:
        batches.close()
    return found, counts


def look(root: Path, dataset: str, whole: list[str], names: tuple[str, ...]) -> Outcome:
    """Verify and load a damaged root.

    Args:
        root: with one dataset.
        dataset: its name.
        whole: what ``read_all`` gave before.
        names: an error names one of these.
    """
    loaded, told = _load(root, dataset, whole, names)
    return Outcome(
        found=not verify_root(root, jobs=1).ok,
        found_deep=not verify_root(root, deep=True, jobs=1).ok,
        loaded=loaded,
        replaced=_replace(root, dataset, whole),
        told=told,
    )


def _load(root: Path, dataset: str, whole: list[str], names: tuple[str, ...]) -> tuple[Loaded, str]:
    try:
        same = read_all(root, dataset) == whole
    except (StreamError, FormatError) as error:
        told = " ".join(str(error).replace(str(root), "ROOT").split())[:300]
        return ("raises" if any(name in told for name in names) else "raises without naming it"), told
    except Exception as error:
        return "another error", f"{type(error).__name__}: {error}"[:300]
    return ("same data" if same else "WRONG"), ""


def _replace(root: Path, dataset: str, whole: list[str]) -> Replaced:
    try:
        found, counts = read_replaced(root, dataset)
        again = read_replaced(root, dataset)
    except (StreamError, FormatError):
        return "raises"
    except Exception:
        return "another error"
    if again != (found, counts):
        return "not deterministic"
    if len(found) != len(whole):
        return "WRONG"
    changed = [have != want for have, want in zip(found, whole, strict=True)]
    if any(change and not count for change, count in zip(changed, counts, strict=True)):
        return "not counted"
    return "replaced" if sum(counts) else "same data"
