"""Commands of the benchmarks: options, result, table, files, errors and exit codes.

The result is what ``--json`` prints and ``--out`` receives; the table is made only from the result.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measure.machine import describe_machine
from bench.measure.options import option, options_of, parameters_of
from stream.base.arguments import Parser, interrupt_on_kill, run_command
from stream.base.errors import ArgumentError
from stream.storage.files import write_atomically

Result = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Output:
    """Options of every command."""

    out: Path | None = option(None, Path, "folder for all figures, and for plots if there are any", metavar="DIR")
    json: bool = option(False, bool, "print all figures instead of a table")


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command, ``python -m <package>.<name>``.

    ``options`` is a dataclass with ``Output`` among its bases. ``work`` yields the result, more complete each time;
    date, parameters and machine are added. ``show`` returns its table, ``failed`` its exit code, 0 or False where all
    is well. ``files`` writes further files to the folder of ``--out``, where the result is ``file``. ``libraries`` are
    distributions whose versions are recorded. ``interrupted`` is the line to print after Ctrl-C.
    """

    name: str
    about: str
    options: type[Any]
    work: Callable[[Any], Iterator[dict[str, Any]]]
    show: Callable[[Result], str]
    failed: Callable[[Result], int] = lambda result: 0
    files: Callable[[Result, Path], None] = lambda result, folder: None
    libraries: Sequence[str] = ()
    epilog: str = ""
    file: str = ""
    interrupted: str = "interrupted"
    package: str = "bench"

    def parse(self, arguments: Sequence[str] | None = None) -> Any:
        """Return the options; a wrong one is one line and ends the program with exit code 2."""
        parser = Parser(prog=f"python -m {self.package}.{self.name}", description=self.about, epilog=self.epilog)
        for field in options_of(self.options):
            flag, read, more = f"--{field.name.replace('_', '-')}", field.metadata["read"], field.metadata["more"]
            help_text, default = field.metadata["what"].replace("%", "%%"), field.default
            if read is bool:
                parser.add_argument(flag, action="store_true", help=help_text)
                continue
            if default is not None:
                shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
                help_text += f" (default: {shown})".replace("%", "%%")
            parser.add_argument(flag, type=read, default=default, help=help_text.strip(), **more)
        options = parser.parse_args(arguments)
        try:
            return self.options(**vars(options))
        except ArgumentError as error:
            parser.error(str(error))

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Run the command and return its exit code."""
        options = self.parse(arguments)
        interrupt_on_kill()
        location = getattr(options, "work", None) or options.out or tempfile.gettempdir()
        return run_command(lambda: self._run(options), path=location, interrupted=self.interrupted)

    def _run(self, options: Any) -> int:
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
        recorded = {
            "date": time.strftime("%Y-%m-%d"),
            "parameters": {name: getattr(options, name) for name in parameters_of(self.options)},
            "machine": describe_machine(self.libraries),
        }
        for part in self.work(options):
            result = {**recorded, **part}
            if options.out is not None:
                write_atomically(options.out / (self.file or f"{self.name}.json"), json.dumps(result, indent=1) + "\n")
        if options.out is not None:
            self.files(result, options.out)
        print(json.dumps(result, indent=1) if options.json else self.show(result))
        return int(self.failed(result))


@contextlib.contextmanager
def work_folder(prefix: str, parent: Path | None, *, keep: bool = False) -> Iterator[Path]:
    """Give a new folder for the work of a command, removed at the end, or kept and reported.

    It is in ``parent``, made if necessary, or in the temporary folder.
    """
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{prefix}-", dir=parent)).resolve()
    try:
        yield folder
    finally:
        if keep:
            say(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def tell(line: str) -> None:
    """Print a line of progress to standard error if it is a terminal."""
    if sys.stderr.isatty():
        say(line)


def say(line: str) -> None:
    """Print a line of progress to standard error."""
    print(line, file=sys.stderr, flush=True)
