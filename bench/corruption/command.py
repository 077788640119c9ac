"""``python -m bench.corruption``: damage every region of every file of a conversion in every way, one at a time.

Each damage must be found by ``convert.verify``, and neither a loader that raises at errors nor a loader that replaces
may return wrong data. The exit code is 1 if wrong data were returned or a damage was not found.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.corruption.damage import FILE_DAMAGES, REGION_DAMAGES, mend, put
from bench.corruption.outcome import Outcome, examine, read_all
from bench.corruption.regions import find_regions
from bench.measure.command import run_command
from bench.measure.points import tell
from bench.measure.tables import markdown_table
from convert.errors import ConvertError
from convert.registry.registry import load_registry
from convert.run.command import main as convert
from convert.sample.command import make_sample
from stream.format.catalog import Catalog
from stream.format.names import MANIFEST_NAME, TABLE_KINDS, shard_file, table_file
from stream.storage.arguments import Parser
from stream.storage.files import write_whole

DATASET = "bridge"
RESULT_FILES = ("corruption.json", "corruption.md")
KINDS = ("arrayrecord", *TABLE_KINDS, "manifest")


@dataclass(frozen=True)
class Cell:
    """One damage and its outcome."""

    kind: str
    region: str
    damage: str
    outcome: Outcome


class Matrix:
    """Damages a copy of a dataset, one way at a time.

    Args:
        sound: Root with ``DATASET``, of at least two splits and two training shards.
        older: Another root, of the same source with other parameters.
        work: Folder for the copy.
    """

    def __init__(self, sound: Path, older: Path, work: Path) -> None:
        self._sound, self._root = work / "sound", work / "root"
        for root in (self._sound, self._root):
            shutil.copytree(sound / DATASET, root / DATASET)
        self._digests = read_all(self._root, DATASET)
        dataset = Catalog(self._root).open(DATASET)
        self._folder = dataset.folder
        self._shards = [dataset.shards["train"].stem(number) for number in range(2)]
        self._splits = ["train", *(split for split in dataset.shards if split != "train")]
        self._older = Catalog(older).open(DATASET).folder

    def cells(self, kinds: Sequence[str], damages: Sequence[str]) -> Iterator[Cell]:
        """Damage the files of some kinds in some ways; a damage that changes nothing is left out."""
        for kind in kinds:
            path, other = (self._path(kind, number) for number in range(2))
            content = path.read_bytes()
            for region in find_regions(path, kind):
                for damage in (name for name in REGION_DAMAGES if name in damages):
                    if (damaged := REGION_DAMAGES[damage](content, region)) != content:
                        put(path, damaged)
                        yield self._cell(kind, region.name, damage, (path,))
            for damage in (name for name in FILE_DAMAGES if name in damages):
                if kind == "manifest" and "another's" in damage:
                    continue
                FILE_DAMAGES[damage](path, other, self._older / path.relative_to(self._folder))
                if not path.exists() or path.read_bytes() != content:
                    yield self._cell(kind, "the whole file", damage, (path, other))
                mend(self._sound, self._root, (path, other))

    def _path(self, kind: str, number: int) -> Path:
        """Return the file to damage (0), or another of its kind: of another shard, or the table of another split."""
        if kind == "manifest":
            return self._folder / MANIFEST_NAME
        if kind == "arrayrecord":
            return self._folder / "train" / shard_file(self._shards[number])
        return self._folder / self._splits[number] / table_file(kind)  # type: ignore[arg-type]

    def _cell(self, kind: str, region: str, damage: str, paths: tuple[Path, ...]) -> Cell:
        # An older manifest is sound by itself: the error names the file that does not fit it.
        names = tuple(path.stem if kind == "arrayrecord" else f"{path.parent.name}/{path.name}" for path in paths)
        names = (MANIFEST_NAME, "of another conversion") if kind == "manifest" else names
        try:
            return Cell(kind, region, damage, examine(self._root, DATASET, self._digests, names))
        finally:
            mend(self._sound, self._root, paths)


def run_matrix(sound: Path, older: Path, *, kinds: Sequence[str] = KINDS, damages: Sequence[str] = ()) -> list[Cell]:
    """Return all cells; ``damages`` has the names of the damages to try, empty for all."""
    cells = []
    with tempfile.TemporaryDirectory(prefix="bench-corruption-") as work:
        for cell in Matrix(sound, older, Path(work)).cells(kinds, damages or (*REGION_DAMAGES, *FILE_DAMAGES)):
            cells.append(cell)
            tell(f"{cell.kind}, {cell.region}, {cell.damage}: {cell.outcome.loaded}")
    return cells


def make_roots(work: Path) -> tuple[Path, Path]:
    """Generate a small source, convert it twice with different parameters, and return both roots."""
    make_sample(work / "source", [load_registry().dataset(DATASET)], episodes=4, steps=9, jobs=1)
    given = ["--datasets", DATASET, "--source", str(work / "source"), "--image-size", "96", "--num-workers", "1"]
    new, old = work / "new", work / "old"
    for root, more in ((new, ()), (old, ("--offset", "3", "--quality", "80"))):
        if convert([*given, *more, "--output", str(root)]) != 0:
            raise ConvertError(f"{root}: the sample could not be converted")
    return new, old


def format_markdown(cells: Sequence[Cell]) -> str:
    """Return the matrix as a table, a row for each region."""
    rows = []
    for kind, region in dict.fromkeys((cell.kind, cell.region) for cell in cells):
        outcomes = [cell.outcome for cell in cells if (cell.kind, cell.region) == (kind, region)]
        found, deep = (sum(getattr(outcome, key) for outcome in outcomes) for key in ("found", "found_deep"))
        texts = [[getattr(outcome, key) for outcome in outcomes] for key in ("loaded", "replaced")]
        rows.append([kind, region, len(outcomes), found, deep, *map(_counted, texts)])
    header = ["file", "region", "damages", "verify finds", "with --deep", "loader", 'on_error="replace"']
    bad = [cell for cell in cells if not cell.outcome.sound]
    lines = [
        markdown_table(header, rows, right=False),
        "",
        f"{len(cells)} damages, {len(bad)} of them with a wrong outcome.",
    ]
    return "\n".join(
        [*lines, *(f"- {cell.kind}, {cell.region}, {cell.damage}: {asdict(cell.outcome)}" for cell in bad)]
    )


def _counted(texts: Sequence[str]) -> str:
    return ", ".join(f"{text} {texts.count(text)}" for text in sorted(set(texts)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = Parser(prog="python -m bench.corruption", description="Damage every region of every file, in every way.")
    parser.add_argument(
        "--kinds", type=_kinds, default=KINDS, metavar="A,B", help=f"files (default: {','.join(KINDS)})"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"folder for {' and '.join(RESULT_FILES)}")
    parser.add_argument("--json", action="store_true", help="print every cell instead of the table")
    options = parser.parse_args(arguments)
    logging.getLogger().setLevel(logging.ERROR)
    began = time.monotonic()

    def work() -> int:
        with tempfile.TemporaryDirectory(prefix="bench-corruption-") as folder:
            tell("converting a sample, twice")
            cells = run_matrix(*make_roots(Path(folder)), kinds=options.kinds)
        bad = sum(not cell.outcome.sound for cell in cells)
        result = {"seconds": round(time.monotonic() - began, 1), "damages": len(cells), "bad": bad}
        content = json.dumps({**result, "cells": [asdict(cell) for cell in cells]}, indent=1)
        table = format_markdown(cells)
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            for name, text in zip(RESULT_FILES, (content, table), strict=True):
                write_whole(options.out / name, text + "\n")
        print(content if options.json else table)
        return 1 if bad else 0

    return run_command(work, place=options.out)


def _kinds(text: str) -> list[str]:
    kinds = [kind.strip() for kind in text.split(",")]
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise argparse.ArgumentTypeError(f"found {unknown[0]!r}, expected some of {', '.join(KINDS)}")
    return kinds
