"""The studies of `studies.yaml`: a question each, and the command that answers it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

Kind = Literal["loader", "train", "formats", "peers"]


@dataclass(frozen=True, kw_only=True)
class Study:
    """A question and the command that answers it; `studies.yaml` describes the fields.

    Attributes:
        key: Name of its folder.
        kind: Room of its command.
    """

    key: str
    title: str
    kind: Kind = "loader"
    seen: str = "-"
    arguments: str = ""
    short: str = ""
    repeats: Sequence[int] = (2, 5)
    plot: str | None = None
    files: Sequence[str] = ()

    @property
    def module(self) -> str:
        """Return the module that ``python -m`` runs."""
        return f"bench.{self.kind}"

    def command(self, places: dict[str, str], *, full: bool) -> list[str]:
        """Return the arguments of the command, without ``--out`` and ``--json``."""
        root = "" if "root" in self.arguments else "--root {root}"
        given = shlex.split(f"{root} {self.arguments} {'' if full else self.short}")
        return [*(argument.format(**places) for argument in given), "--repeat", str(self.repeats[full])]


_FILE = Path(__file__).with_name("studies.yaml")
STUDIES = tuple(Study(key=key, **about) for key, about in yaml.safe_load(_FILE.read_text()).items())
"""All studies, in the order of the page."""
