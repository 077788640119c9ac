"""One request of ``python -m convert.run``: the options of its command line, typed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from convert.run.arguments import build_parser
from stream.format.names import Layout
from stream.storage.remote import is_remote


@dataclass(frozen=True, kw_only=True)
class ConvertRequest:
    """Options of the command line, named as on it; None for an option that was not given.

    Attributes:
        beam_arguments: Further options, which are passed to Apache Beam.
    """

    datasets: str
    source: tuple[str, ...]
    output: str
    config: tuple[str, ...]
    splits: str | None
    episodes: str | None
    layout: Layout | None
    camera: str | None
    cameras: str | None
    image_size: str | None
    resize: Literal["stretch", "crop", "pad"]
    codec: str | None
    quality: int | None
    subsampling: Literal["420", "444"] | None
    gop: int | None
    crf: int | None
    offset: str | None
    frames: str | None
    leave_out: tuple[str, ...] | None
    on_error: Literal["quarantine", "fail"]
    num_workers: int
    task_index: int
    task_count: int
    staging: str | None
    finalize: bool
    overwrite: bool
    remove: bool
    redo: tuple[str, ...]
    dry_run: bool
    verbose: bool
    json: bool
    beam_arguments: tuple[str, ...]

    def with_absolute_paths(self) -> ConvertRequest:
        """Return the request with absolute local paths, as workers may run in other folders."""
        return replace(self, source=tuple(map(_absolute, self.source)), output=_absolute(self.output))


def parse_request(arguments: Sequence[str] | None = None) -> ConvertRequest:
    """Return the request that a command line makes, by default that of this process."""
    parsed, beam_arguments = build_parser().parse_known_args(arguments)
    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in vars(parsed).items()
    }
    return ConvertRequest(**options, beam_arguments=tuple(beam_arguments))


def _absolute(path: str) -> str:
    return path if is_remote(path) or not path else os.path.abspath(path)
