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

import numpy as np

from convert.errors import DamagedEpisode, MalformedEpisode, SourceError, UsageError
from convert.picture import PICTURES
from convert.source.describe import unlike_pictures
from convert.source.files.plain import PlainEpisode, describe, is_array
from convert.source.files.source import FileKind, FileReader, FilesSource, NumberedEpisode, open_files
from convert.source.locations import find_paths
from stream.base.errors import closest

_END = object()
"""Marker that follows the last episode."""


def find(location: str, roots: Sequence[str], layout: Mapping[str, Any]) -> FilesSource:
    """Find the files for the function ``FILE.py:FUNCTION``, whose keyword arguments are the layout.

    Raises:
        UsageError: There is no such file or function, or no files.
        SourceError: No file gives an episode.
    """
    module_path, colon, function = location.rpartition(":")
    if not colon or not module_path.endswith(".py"):
        raise UsageError(f"python:{location}: expected python:FILE.py:FUNCTION, such as python:my_data.py:episodes")
    try:
        code = Path(module_path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"python:{location}: {module_path}: {getattr(error, 'strerror', None) or error}") from None
    if len(roots) != 1:
        raise UsageError(f"python:{location}: give one --source, the file, folder or glob that {function} reads")
    arguments = tuple(sorted(layout.items()))
    kind = PythonFiles(code=code, file=str(Path(module_path).absolute()), function=function, arguments=arguments)
    kind.load()
    root, file_paths = find_paths(roots[0], ["*"])
    facts = {"description": f"Episodes of the function {function} of {Path(module_path).name}."}
    source = open_files(root, file_paths, kind, dataset_name=function, entry_facts=facts)
    similar = [f"{feature.name} is {feature.dtype} {feature.shape}" for feature in unlike_pictures(source.features)]
    if similar and not source.entry["cameras"]:
        advice = "yield uint8 [n, height, width, 3], white as 255 and channels last, or a list of encoded pictures"
        raise SourceError(f"python:{location}: no feature is pictures: {', '.join(similar)}; {advice}")
    return source


@dataclass(frozen=True, kw_only=True)
class PythonFiles(FileKind):
    """A function that yields the episodes of a file; ``code`` is the text of its module ``file``."""

    sampled_episodes = 8  # Few, because the function has to make each of them.
    code: str
    file: str
    function: str
    arguments: tuple[tuple[str, Any], ...]

    @property
    def recipe(self) -> Any:
        """The code and the arguments."""
        return [self.code, self.function, self.arguments]

    def survey(self, path: Path) -> None:
        """Return nothing: only the function knows its episodes."""
        return

    def load(self) -> Callable[..., Any]:
        """Return the function. Raises UsageError if the module fails or lacks it."""
        try:
            with contextlib.redirect_stdout(sys.stderr):
                module = _load(self.code, self.file)
        except (Exception, SystemExit) as error:
            raise UsageError(f"{self.file}: {_describe(error, self.file)}") from error
        function = getattr(module, self.function, None)
        if not callable(function):
            names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
            suggestion = closest(self.function, names, noun="functions")
            raise UsageError(f"{self.file}: no function {self.function!r}; {suggestion}")
        return function

    @contextlib.contextmanager
    def open(self, path: Path) -> Iterator[PythonReader]:
        """Call the function for a file."""
        yield PythonReader(self, path)


@dataclass(frozen=True)
class PythonReader(FileReader):
    """The episodes of one file."""

    kind: PythonFiles
    path: Path

    def episodes(self, numbers: Sequence[int] | None) -> Iterator[NumberedEpisode]:
        """Yield all episodes; a fault in the function ends them, so it raises DamagedEpisode.

        What the function prints goes to standard error: standard output is the command's.
        """
        episode_number = 0
        try:
            function = self.kind.load()
            with contextlib.redirect_stdout(sys.stderr):
                remaining = iter(function(str(self.path), **dict(self.kind.arguments)))
            while True:
                with contextlib.redirect_stdout(sys.stderr):
                    if (yielded := next(remaining, _END)) is _END:
                        return
                    try:
                        episode: PlainEpisode | DamagedEpisode = _plain(yielded)
                    except MalformedEpisode as error:
                        episode = error
                yield episode_number, episode
                episode_number += 1
        except DamagedEpisode:
            raise
        except (Exception, SystemExit) as error:
            message = f"episode {episode_number}: {_describe(error, self.kind.file)}"
            raise DamagedEpisode(message, reason="unreadable") from error


def _plain(yielded: object) -> PlainEpisode:
    if not isinstance(yielded, Mapping) or "steps" not in yielded or not set(yielded) <= {"steps", "episode"}:
        description = f"a {type(yielded).__name__}"
        if isinstance(yielded, Mapping):
            description = f"the keys {', '.join(map(str, yielded))}"
        raise MalformedEpisode(f'the function yields {description}, expected {{"steps": {{...}}, "episode": {{...}}}}')
    return PlainEpisode(*(flatten(yielded.get(level, {}), context=level) for level in ("steps", "episode")))


@lru_cache(maxsize=8)
def _load(module_text: str, module_path: str) -> ModuleType:
    """Return a module made of its text, because the machine may lack the file.

    Dataclasses, pickle and others find the module of a class by name, so it is registered under a unique name.
    """
    digest = hashlib.sha256(f"{module_path}\0{module_text}".encode()).hexdigest()[:16]
    module = ModuleType(f"{Path(module_path).stem}_{digest}")
    module.__file__ = module_path
    sys.modules[module.__name__] = module
    # So that tracebacks show the lines, even on machines without the file.
    linecache.cache[module_path] = (len(module_text), None, module_text.splitlines(keepends=True), module_path)
    exec(compile(module_text, module_path, "exec"), module.__dict__)
    return module


def _describe(error: BaseException, module_path: str) -> str:
    """Return an error with the line of the module that raised it."""
    line = ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == module_path]
    if isinstance(error, SyntaxError) and error.filename == module_path:
        line = f"line {error.lineno}: "
    elif frames:
        line = f"{Path(module_path).name}, line {frames[-1].lineno}: "
    return f"{line}{type(error).__name__}: {error}"


def flatten(values: object, *, context: str) -> dict[str, Any]:
    """Return nested mappings as one, names joined with a slash; raises MalformedEpisode if it is none."""
    if not isinstance(values, Mapping):
        raise MalformedEpisode(f"{context} is {describe(values)}, expected a mapping of names to values")
    flattened: dict[str, Any] = {}
    for value_name, value in values.items():
        if isinstance(value, Mapping):
            nested = flatten(value, context=f"{context}/{value_name}")
            flattened |= {f"{value_name}/{name}": nested_value for name, nested_value in nested.items()}
        else:
            flattened[str(value_name)] = _normalise(value)
    return flattened


def _normalise(value: Any) -> Any:
    """Return tensors and lists of equal arrays as one array, and an array of encoded pictures as a list."""
    if isinstance(value, list | tuple) and value and isinstance(value[0], np.ndarray):
        with contextlib.suppress(ValueError):
            return np.stack(value)
    if hasattr(value, "__array__") and not is_array(value):
        return np.asarray(value)
    is_bytes = isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "OS" and len(value) > 0
    return list(value) if is_bytes and isinstance(value[0], bytes) and value[0].startswith(PICTURES) else value
