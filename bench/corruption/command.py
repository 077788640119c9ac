"""``python -m bench.corruption``: every region of every file of a conversion damaged in every way, one at a time.

For each it is asked whether ``convert.verify`` finds it, what a loader does that raises at errors, and what one does
that replaces. Nothing wrong may come out. The exit code is 1 if something does, or if something is not found.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.corruption.damage import FILE_DAMAGES, REGION_DAMAGES, mend, put
from bench.corruption.outcome import Outcome, look, read_all
from bench.corruption.regions import find_regions
from bench.measure.command import run_command
from bench.measure.points import tell
from convert.errors import ConvertError
from convert.registry.registry import load_registry
from convert.run.command import main as convert
from convert.sample.command import make_sample
from stream.format.catalog import Catalog
from stream.format.names import MANIFEST_NAME, TABLE_KINDS, shard_file, table_file
from stream.storage.arguments import Parser
from stream.storage.atomic import write_whole

DATASET = "bridge"
RESULT_FILES = ("corruption.json", "corruption.md")
KINDS = ("arrayrecord", *TABLE_KINDS, "manifest")
_WHOLE = "the whole file"


@dataclass(frozen=True)
class Cell:
    """One damage and what came of it."""

    kind: str
    region: str
    damage: str
    outcome: Outcome


class Matrix:
    """Damages a copy of a dataset, one way at a time.

    Args:
        sound: a root with ``DATASET``, of two splits and two training shards or more.
        older: another, of the same source with other parameters.
        work: a folder for the copy.
    """

    def __init__(self, sound: Path, older: Path, work: Path) -> None:
        self._sound = work / "sound"
        self._root = work / "root"
        for place in (self._sound, self._root):
            shutil.copytree(sound / DATASET, place / DATASET)
        self._whole = read_all(self._root, DATASET)
        dataset = Catalog(self._root).open(DATASET)
        self._folder = dataset.folder
        self._shards = [dataset.shards["train"].stem(number) for number in range(2)]
        self._splits = ["train", *(split for split in dataset.shards if split != "train")]
        self._older = Catalog(older).open(DATASET).folder

    def cells(self, kinds: Sequence[str], damages: Sequence[str]) -> Iterator[Cell]:
        """Damage the files of some kinds in some ways; what a damage leaves as it was is left out."""
        for kind in kinds:
            path, other = (self._path(kind, number) for number in range(2))
            content = path.read_bytes()
            for region in find_regions(path, kind):
                for damage in (name for name in REGION_DAMAGES if name in damages):
                    damaged = REGION_DAMAGES[damage](content, region)
                    if damaged != content:
                        put(path, damaged)
                        yield self._cell(kind, region.name, damage, (path,))
            for damage in (name for name in FILE_DAMAGES if name in damages):
                if kind == "manifest" and "another's" in damage:
                    continue
                older = self._older / path.relative_to(self._folder)
                FILE_DAMAGES[damage](path, other, older)
                if not path.exists() or path.read_bytes() != content:
                    yield self._cell(kind, _WHOLE, damage, (path, other))
                else:
                    mend(self._sound, self._root, (path, other))

    def _path(self, kind: str, number: int) -> Path:
        """The file to damage, 0, or another one of its kind: of another shard, or the table of another split."""
        if kind == "manifest":
            return self._folder / MANIFEST_NAME
        if kind == "arrayrecord":
            return self._folder / "train" / shard_file(self._shards[number])
        return self._folder / self._splits[number] / table_file(kind)  # type: ignore[arg-type]

    def _cell(self, kind: str, region: str, damage: str, paths: tuple[Path, ...]) -> Cell:
        # An older manifest is sound by itself: what does not fit it is named.
        names = tuple(path.stem if kind == "arrayrecord" else f"{path.parent.name}/{path.name}" for path in paths)
        names = (MANIFEST_NAME, "of another conversion") if kind == "manifest" else names
        try:
            return Cell(kind, region, damage, look(self._root, DATASET, self._whole, names))
        finally:
            mend(self._sound, self._root, paths)


def run_matrix(sound: Path, older: Path, *, kinds: Sequence[str] = KINDS, damages: Sequence[str] = ()) -> list[Cell]:
    """Return all cells. damages: names of those to try; all if there are none."""
    chosen = damages or (*REGION_DAMAGES, *FILE_DAMAGES)
    with tempfile.TemporaryDirectory(prefix="bench-corruption-") as work:
        cells = []
        for cell in Matrix(sound, older, Path(work)).cells(kinds, chosen):
            cells.append(cell)
            tell(f"{cell.kind}, {cell.region}, {cell.damage}: {cell.outcome.loaded}")
    return cells


def make_roots(work: Path) -> tuple[Path, Path]:
    """Generate a small source and convert it twice, with other parameters; returns both roots."""
    registry = load_registry()
    make_sample(work / "source", [registry.dataset(DATASET)], episodes=4, steps=9, jobs=1)
    roots = []
    for name, more in (("new", ()), ("old", ("--offset", "3", "--quality", "80"))):
        root = work / name
        given = ["--datasets", DATASET, "--source", str(work / "source"), "--output", str(root), "--image-size", "96"]
        if convert([*given, *more, "--num-workers", "1"]) != 0:
            raise ConvertError(f"{root}: the sample could not be converted")
        roots.append(root)
    return roots[0], roots[1]


def format_markdown(cells: Sequence[Cell]) -> str:
    """Return the matrix as a table, a row for each region."""
    header = ["file", "region", "damages", "verify finds", "with --deep", "loader", 'on_error="replace"']
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    for kind, region in dict.fromkeys((cell.kind, cell.region) for cell in cells):
        outcomes = [cell.outcome for cell in cells if (cell.kind, cell.region) == (kind, region)]
        row = [
            kind,
            region,
            str(len(outcomes)),
            str(sum(outcome.found for outcome in outcomes)),
            str(sum(outcome.found_deep for outcome in outcomes)),
            _counted([outcome.loaded for outcome in outcomes]),
            _counted([outcome.replaced for outcome in outcomes]),
        ]
        lines.append(f"| {' | '.join(row)} |")
    bad = [cell for cell in cells if not cell.outcome.sound]
    lines += ["", f"{len(cells)} damages, {len(bad)} of them not as they should be."]
    lines += [f"- {cell.kind}, {cell.region}, {cell.damage}: {asdict(cell.outcome)}" for cell in bad]
    return "\n".join(lines)


def _counted(texts: Sequence[str]) -> str:
    return ", ".join(f"{text} {texts.count(text)}" for text in sorted(set(texts)))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m bench.corruption", description="Damage every region of every file, in every way.")
    parser.add_argument("--kinds", default=",".join(KINDS), metavar="A,B", help="files (default: %(default)s)")
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"folder for {' and '.join(RESULT_FILES)}")
    parser.add_argument("--json", action="store_true", help="print every cell instead of the table")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    kinds = [kind.strip() for kind in options.kinds.split(",")]
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        parser.error(f"--kinds: {unknown[0]!r}; expected some of {', '.join(KINDS)}")
    logging.getLogger().setLevel(logging.ERROR)
    began = time.monotonic()

    def work() -> int:
        with tempfile.TemporaryDirectory(prefix="bench-corruption-") as folder:
            tell("converting a sample, twice")
            sound, older = make_roots(Path(folder))
            cells = run_matrix(sound, older, kinds=kinds)
        bad = sum(not cell.outcome.sound for cell in cells)
        result: dict[str, Any] = {"seconds": round(time.monotonic() - began, 1), "damages": len(cells), "bad": bad}
        result["cells"] = [asdict(cell) for cell in cells]
        content, table = json.dumps(result, indent=1), format_markdown(cells)
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            for name, text in zip(RESULT_FILES, (content, table), strict=True):
                write_whole(options.out / name, text + "\n")
        print(content if options.json else table)
        return 1 if bad else 0

    return run_command(work, place=options.out)


if __name__ == "__main__":
    sys.exit(main())
