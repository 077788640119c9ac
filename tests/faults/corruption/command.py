"""``python -m tests.faults.corruption``: damage every region of every file of a conversion in every way, one at a time.

Each damage must be found by ``verify``, and neither a loader that raises at errors nor a loader that replaces
may return wrong data. The exit code is 1 if wrong data were returned or a damage was not found.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from bench.measure.command import Command, Output, Result, tell, work_folder
from bench.measure.options import one_of, option, several
from bench.measure.tables import markdown_table
from convert.errors import ConvertError
from convert.registry.registry import load_registry
from convert.run.command import main as convert
from convert.sample.command import make_sample
from convert.verify.command import verify_root
from stream.base.errors import StreamError
from stream.format.catalog import Catalog
from stream.format.frame import CODECS, Codec
from stream.format.names import MANIFEST_NAME, TABLE_KINDS, shard_file, table_file
from stream.format.video import VIDEO_CODECS
from stream.loader.comparison import digest
from stream.loader.opening import make_loader
from stream.loader.run_config import Workers
from stream.storage.files import write_atomically
from tests.faults.corruption.regions import FILE_DAMAGES, REGION_DAMAGES, find_regions, put

DATASET = "bridge"
KINDS = ("arrayrecord", *TABLE_KINDS, "manifest")
Loaded = Literal["raises", "raises without naming it", "same data", "WRONG", "another error"]
Replaced = Literal["replaced", "raises", "same data", "WRONG", "not deterministic", "not counted", "another error"]
_BAD = {"WRONG", "another error", "not deterministic", "not counted", "raises without naming it"}
_COLUMNS = ("is_first", "robot")
"""One column of the steps and one of the episodes, so that columns of all tables are read."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Findings of ``pairstream verify``, without and with ``--deep``, and of loaders that raise or replace.

    ``told`` are the first words of the loader's error.
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


@dataclass(frozen=True)
class Cell:
    kind: str
    region: str
    damage: str
    outcome: Outcome


def examine(root: Path, expected: Sequence[tuple[str, int]], names: Sequence[str]) -> Outcome:
    """Verify and load a damaged root."""
    loaded, message = _load(root, expected, names)
    return Outcome(
        found=not verify_root(root, jobs=1).ok,
        found_deep=not verify_root(root, deep=True, jobs=1).ok,
        loaded=loaded,
        replaced=_replace(root, expected),
        told=message,
    )


def _read(root: Path, on_error: Literal["raise", "replace"] = "raise") -> list[tuple[str, int]]:
    """Return a hash of each sample of one epoch, and the number of records replaced for it."""
    # Single samples in the order of the files.
    size: dict[str, Any] = {"batch_size": 1, "num_workers": Workers(threads=1), "shuffle": "none", "columns": _COLUMNS}
    loader = make_loader(root, DATASET, split="train", on_error=on_error, **size)
    samples = []
    with closing(iter(loader)) as batches:
        for _ in range(loader.steps_per_epoch):
            before = loader.stats()["replaced"]
            samples.append((digest(next(batches)), loader.stats()["replaced"] - before))
    return samples


def _load(root: Path, expected: Sequence[tuple[str, int]], names: Sequence[str]) -> tuple[Loaded, str]:
    try:
        return ("same data" if _read(root) == expected else "WRONG"), ""
    except StreamError as error:
        message = " ".join(str(error).replace(str(root), "ROOT").split())[:300]
        return ("raises" if any(name in message for name in names) else "raises without naming it"), message
    except Exception as error:
        return "another error", f"{type(error).__name__}: {error}"[:300]


def _replace(root: Path, expected: Sequence[tuple[str, int]]) -> Replaced:
    try:
        samples, repeated = (_read(root, "replace") for _ in range(2))
    except StreamError:
        return "raises"
    except Exception:
        return "another error"
    if repeated != samples:
        return "not deterministic"
    if len(samples) != len(expected):
        return "WRONG"
    if any(have != want and not count for (have, count), (want, _) in zip(samples, expected, strict=True)):
        return "not counted"
    return "replaced" if any(count for _, count in samples) else "same data"


def run_matrix(intact: Path, older: Path, *, kinds: Sequence[str] = KINDS, damages: Sequence[str] = ()) -> list[Cell]:
    """Damage copies of the files of some kinds in some ways; a damage that changes nothing is left out."""
    chosen, cells = damages or (*REGION_DAMAGES, *FILE_DAMAGES), []
    with work_folder("corruption", None) as root:
        shutil.copytree(intact / DATASET, root / DATASET)
        expected = _read(root)
        dataset, old = Catalog(root).open(DATASET), Catalog(older).open(DATASET).folder

        def examine_and_mend(kind: str, region: str, damage: str, files: dict[Path, bytes]) -> None:
            # An older manifest is sound by itself: the error names the file that does not fit it.
            names = [path.stem if kind == "arrayrecord" else f"{path.parent.name}/{path.name}" for path in files]
            names = [MANIFEST_NAME, "another conversion"] if kind == "manifest" else names
            cells.append(Cell(kind, region, damage, examine(root, expected, names)))
            tell(f"{kind}, {region}, {damage}: {cells[-1].outcome.loaded}")
            for path, content in files.items():
                put(path, content)

        for kind in kinds:
            # Another file of the kind is of another shard, or the table of another split.
            path, other_file = _files(dataset, kind)
            content, files = path.read_bytes(), {file: file.read_bytes() for file in (path, other_file)}
            for region in find_regions(path, kind):
                for damage in (name for name in REGION_DAMAGES if name in chosen):
                    if (damaged := REGION_DAMAGES[damage](content, region)) != content:
                        put(path, damaged)
                        examine_and_mend(kind, region.name, damage, {path: content})
            for damage in (name for name in FILE_DAMAGES if name in chosen):
                if kind == "manifest" and "another's" in damage:
                    continue
                FILE_DAMAGES[damage](path, other_file, old / path.relative_to(dataset.folder))
                if not path.exists() or path.read_bytes() != content:
                    examine_and_mend(kind, "the whole file", damage, files)
    return cells


def _files(dataset: Any, kind: str) -> list[Path]:
    """Return the file of a kind to damage, and another one, which of a manifest is the same."""
    if kind == "manifest":
        return [dataset.folder / MANIFEST_NAME] * 2
    if kind == "arrayrecord":
        return [dataset.folder / "train" / shard_file(dataset.shards["train"].stem(number)) for number in range(2)]
    splits = ["train", *(split for split in dataset.shards if split != "train")]
    return [dataset.folder / split / table_file(kind) for split in splits[:2]]  # type: ignore[arg-type]


def make_roots(work: Path, codec: Codec = "jpeg") -> tuple[Path, Path]:
    """Generate a small source, convert it twice with different parameters, and return both roots."""
    make_sample(work / "source", [load_registry().dataset(DATASET)], episodes=4, steps=9, jobs=1)
    arguments = ["--datasets", DATASET, "--source", str(work / "source"), "--image-size", "96", "--num-workers", "1"]
    new, old = work / "new", work / "old"
    ways: dict[Path, tuple[str, ...]] = {new: (), old: ("--offset", "3", "--quality", "80")}
    if codec != "jpeg":
        ways = {new: ("--codec", codec), old: ("--codec", codec, "--offset", "3")}
    if codec in VIDEO_CODECS:
        ways = {new: ("--codec", codec, "--gop", "4"), old: ("--codec", codec, "--gop", "3")}
        arguments += ["--layout", "frames"]
    for root, more in ways.items():
        if convert([*arguments, *more, "--output", str(root)]) != 0:
            raise ConvertError(f"{root}: the sample could not be converted")
    return new, old


def format_markdown(cells: Sequence[Cell]) -> str:
    """Return the matrix as a table, a row for each region."""
    rows = []
    for kind, region in dict.fromkeys((cell.kind, cell.region) for cell in cells):
        outcomes = [cell.outcome for cell in cells if (cell.kind, cell.region) == (kind, region)]
        num_found, deep = (sum(getattr(outcome, key) for outcome in outcomes) for key in ("found", "found_deep"))
        texts = [[getattr(outcome, key) for outcome in outcomes] for key in ("loaded", "replaced")]
        rows.append([kind, region, len(outcomes), num_found, deep, *map(_counted, texts)])
    header = ["file", "region", "damages", "verify finds", "with --deep", "loader", 'on_error="replace"']
    bad = [cell for cell in cells if not cell.outcome.sound]
    lines = [f"- {cell.kind}, {cell.region}, {cell.damage}: {asdict(cell.outcome)}" for cell in bad]
    count = f"{len(cells)} damages, {len(bad)} of them with a wrong outcome."
    return "\n".join([markdown_table(header, rows, right=False), "", count, *lines])


def _counted(texts: Sequence[str]) -> str:
    return ", ".join(f"{text} {texts.count(text)}" for text in sorted(set(texts)))


@dataclass(frozen=True, kw_only=True)
class CorruptionOptions(Output):
    kinds: tuple[str, ...] = option(KINDS, several(one_of(KINDS)), "files", metavar="A,B")
    codec: Codec = option("jpeg", one_of(CODECS), "codec of the frames")


def _work(options: CorruptionOptions) -> Iterator[dict[str, Any]]:
    logging.getLogger().setLevel(logging.ERROR)
    began = time.monotonic()
    with work_folder("corruption", None) as folder:
        tell("converting a sample, twice")
        cells = run_matrix(*make_roots(folder, options.codec), kinds=options.kinds)
    yield {
        "seconds": round(time.monotonic() - began, 1),
        "damages": len(cells),
        "bad": sum(not cell.outcome.sound for cell in cells),
        "cells": [asdict(cell) for cell in cells],
    }


def _show(result: Result) -> str:
    return format_markdown([Cell(**{**cell, "outcome": Outcome(**cell["outcome"])}) for cell in result["cells"]])


COMMAND = Command(
    name="corruption",
    package="tests.faults",
    about="Damage every region of every file, in every way.",
    options=CorruptionOptions,
    work=_work,
    show=_show,
    failed=lambda result: result["bad"] > 0,
    files=lambda result, folder: write_atomically(folder / "corruption.md", _show(result) + "\n"),
)
main = COMMAND.main
