"""Datasets that a function of the user reads: ``python:FILE.py:FUNCTION``, called for each file of ``--source``.

The function takes the path of a file and yields its episodes, ``{"steps": {name: values}, "episode": {name: value}}``,
see ``convert.source.files.plain.PlainEpisode``. The text of the module goes to the workers.
"""

from __future__ import annotations

import contextlib
import hashlib
import linecache
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from convert.errors import DamagedEpisode, MalformedEpisode, SourceError, UsageError
from convert.source.describe import unlike_pictures
from convert.source.files.plain import PlainEpisode
from convert.source.files.source import FileKind, FileReader, FilesSource, Found, open_files
from convert.source.places import find_paths
from convert.source.python.values import flatten
from stream.base.errors import closest

_KEYS = {"steps", "episode"}
_LOOKS = 8
"""Episodes, from all over a dataset, whose features are its features: the function has to make each of them."""
_END = object()
"""Mark that follows the last episode."""


def find(place: str, roots: Sequence[str], layout: Mapping[str, Any]) -> FilesSource:
    """Find the files for a function.

    Args:
        place: ``FILE.py:FUNCTION``.
        roots: Folders or globs of files.
        layout: Keyword arguments of the function.

    Raises:
        UsageError: There is no such file or function, or no files.
        SourceError: No file gives an episode.
    """
    file, colon, name = place.rpartition(":")
    if not colon or not file.endswith(".py"):
        raise UsageError(f"python:{place}: expected python:FILE.py:FUNCTION, such as python:my_data.py:episodes")
    try:
        code = Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"python:{place}: {file}: {getattr(error, 'strerror', None) or error}") from None
    if len(roots) != 1:
        raise UsageError(f"python:{place}: give one --source, the file, folder or glob of what {name} reads")
    arguments = tuple(sorted(layout.items()))
    kind = PythonFiles(code=code, file=str(Path(file).absolute()), function=name, arguments=arguments)
    kind.load()
    root, paths = find_paths(roots[0], ["*"])
    description = f"Episodes of the function {name} of {Path(file).name}."
    facts = {"description": description}
    source = open_files(root, paths, kind, name=name, facts=facts)
    unlike = [f"{each.name} is {each.dtype} {each.shape}" for each in unlike_pictures(source.features)]
    if unlike and not source.entry["cameras"]:
        raise SourceError(
            f"python:{place}: no feature is pictures: {', '.join(unlike)}; yield uint8 [n, height, width, 3], white as "
            "255 and channels last, or a list of encoded pictures"
        )
    return source


@dataclass(frozen=True, kw_only=True)
class PythonFiles(FileKind):
    """A function that yields the episodes of a file; ``code`` is the text of its module ``file``."""

    looks = _LOOKS
    code: str
    file: str
    function: str
    arguments: tuple[tuple[str, Any], ...]

    @property
    def recipe(self) -> Any:
        """The code and the arguments."""
        return [self.code, self.function, self.arguments]

    def survey(self, path: Path) -> None:
        """Return nothing: only the function can tell."""
        return

    def load(self) -> Callable[..., Any]:
        """Return the function. Raises UsageError if the module fails or lacks it."""
        try:
            with contextlib.redirect_stdout(sys.stderr):
                module = _load(self.code, self.file)
        except (Exception, SystemExit) as error:
            raise UsageError(f"{self.file}: {_place(error, self.file)}{type(error).__name__}: {error}") from error
        found = getattr(module, self.function, None)
        if not callable(found):
            names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
            hint = closest(self.function, names, noun="functions")
            raise UsageError(f"{self.file}: no function {self.function!r}; {hint}")
        return found

    @contextlib.contextmanager
    def open(self, path: Path) -> Iterator[PythonReader]:
        """Call the function for a file."""
        yield PythonReader(self, path)


@dataclass(frozen=True)
class PythonReader(FileReader):
    """The episodes of one file."""

    kind: PythonFiles
    path: Path

    def episodes(self, numbers: Sequence[int] | None) -> Iterator[Found]:
        """Yield all episodes; after a fault in the function none can follow, so it raises DamagedEpisode.

        What the function prints goes to standard error: standard output is the command's.
        """
        number = 0
        try:
            function = self.kind.load()
            with contextlib.redirect_stdout(sys.stderr):
                remaining = iter(function(str(self.path), **dict(self.kind.arguments)))
            while True:
                with contextlib.redirect_stdout(sys.stderr):
                    if (found := next(remaining, _END)) is _END:
                        return
                    try:
                        episode: PlainEpisode | DamagedEpisode = _plain(found)
                    except MalformedEpisode as error:
                        episode = error
                yield number, episode
                number += 1
        except DamagedEpisode:
            raise
        except (Exception, SystemExit) as error:
            fault = f"{_place(error, self.kind.file)}{type(error).__name__}: {error}"
            raise DamagedEpisode(f"episode {number}: {fault}", reason="unreadable") from error


def _plain(found: object) -> PlainEpisode:
    if not isinstance(found, Mapping) or "steps" not in found or not set(found) <= _KEYS:
        told = f"the keys {', '.join(map(str, found))}" if isinstance(found, Mapping) else f"a {type(found).__name__}"
        raise MalformedEpisode(f'the function yields {told}, expected {{"steps": {{...}}, "episode": {{...}}}}')
    return PlainEpisode(flatten(found["steps"], where="steps"), flatten(found.get("episode", {}), where="episode"))


@lru_cache(maxsize=8)
def _load(code: str, file: str) -> ModuleType:
    """Return a module made of its text; the machine may not have the file.

    Dataclasses, pickle and others find the module of a class by name, so it is registered, under a name that no other
    module has.
    """
    digest = hashlib.sha256(f"{file}\0{code}".encode()).hexdigest()[:16]
    module = ModuleType(f"{Path(file).stem}_{digest}")
    module.__file__ = file
    sys.modules[module.__name__] = module
    # So that tracebacks show the lines, on machines without the file too.
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    exec(compile(code, file, "exec"), module.__dict__)
    return module


def _place(error: BaseException, file: str) -> str:
    """Return the line of a file at which an error arose, for the beginning of a message."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return f"line {error.lineno}: "
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{Path(file).name}, line {lines[-1]}: " if lines else ""
