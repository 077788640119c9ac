"""Marked episodes, kept in the JSON file that ``make_loader`` takes as ``episodes=``."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stream.base.errors import ArgumentError, StreamError
from stream.format.episode_list import read_list, read_value
from stream.storage.files import write_atomically
from stream.storage.remote import check_local

Use = Literal["leave_out", "keep"]
"""Use of the marked episodes of a dataset: leave them out, or keep only them."""


@dataclass
class _Marked:
    use: Use
    ids: set[str]


class Marks:
    """The marked episodes of each dataset, in a file. Every change is written at once; several threads may use them.

    Marks of other roots stay in the file, also marks that another browser writes meanwhile.

    Attributes:
        others: Marks of datasets that the root does not hold, as the file has them.

    Raises:
        ArgumentError: The file holds something else, or is an address.
    """

    def __init__(self, marks_path: str | Path, datasets: Sequence[str]) -> None:
        check_local(marks_path)
        self.path = Path(marks_path)
        if self.path.suffix != ".json" and self.path.exists():
            raise ArgumentError(f"--marks {self.path}: expected a JSON file")
        self._datasets = frozenset(datasets)
        self._lock = threading.Lock()
        self._by_dataset: dict[str, _Marked] = {}
        self.others: dict[str, Any] = {}
        self._read()

    def _read(self) -> None:
        """Read the file, if it exists; a dataset without marks keeps its chosen use."""
        content = read_value(str(self.path), "--marks") if self.path.exists() else {}
        if not isinstance(content, Mapping):
            raise ArgumentError(f"--marks {self.path}: {content!r:.100}; expected a mapping of datasets to episodes")
        by_dataset = {name: marked for name, marked in self._by_dataset.items() if not marked.ids}
        for name, dataset_marks in content.items():
            episode_list = read_list(dataset_marks, f"{self.path}: {name}")
            by_dataset[name] = _Marked("keep" if episode_list.keeps else "leave_out", set(episode_list.names))
        self.others = {name: dataset_marks for name, dataset_marks in content.items() if name not in self._datasets}
        self._by_dataset = {name: marked for name, marked in by_dataset.items() if name in self._datasets}

    def __len__(self) -> int:
        return sum(len(marked.ids) for marked in self._by_dataset.values())

    @property
    def datasets(self) -> list[str]:
        """Names of the datasets with marked episodes."""
        return sorted(name for name, marked in self._by_dataset.items() if marked.ids)

    def has(self, dataset: str, episode_id: str) -> bool:
        """Return whether an episode is marked."""
        return episode_id in self._marked(dataset).ids

    def ids(self, dataset: str) -> list[str]:
        """Return the ids of the marked episodes of a dataset, sorted."""
        return sorted(self._marked(dataset).ids)

    def use(self, dataset: str) -> Use:
        """Return the use of the marked episodes of a dataset."""
        return self._marked(dataset).use

    def _marked(self, dataset: str) -> _Marked:
        return self._by_dataset.get(dataset, _Marked("leave_out", set()))

    def set(self, dataset: str, episode_id: str, is_marked: bool) -> None:
        """Mark an episode, or remove its mark, and write the file; raise StreamError if it cannot be written."""
        with self._lock:
            self._read()
            marked = self._by_dataset[dataset] = self._marked(dataset)
            (marked.ids.add if is_marked else marked.ids.discard)(episode_id)
            self._write()

    def set_use(self, dataset: str, use: Use) -> None:
        """Choose the use of the marked episodes of a dataset, and write the file; raises as ``set`` does."""
        with self._lock:
            self._read()
            self._by_dataset[dataset] = _Marked(use, self._marked(dataset).ids)
            self._write()

    def to_json(self, *, with_others: bool = False) -> str:
        """Return the marks of the root as a file has them; with others, all that is in the file."""
        content = {name: {self._by_dataset[name].use: self.ids(name)} for name in self.datasets}
        return json.dumps({**(self.others if with_others else {}), **content}, indent=1, ensure_ascii=False) + "\n"

    def _write(self) -> None:
        try:
            write_atomically(self.path, self.to_json(with_others=True))
        except OSError as error:
            raise StreamError(f"{self.path}: cannot be written ({error.strerror})") from None
