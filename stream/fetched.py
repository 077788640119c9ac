"""``fetched.json``: which shards of a dataset are here, where ``stream.fetch`` brought only those that were asked for.

The manifest beside it is that of the whole dataset, so that samples have the same numbers, batches the same content and
``loader.json`` the same fingerprints as on the root that it came from. A dataset without this file is whole.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from stream.format import FETCHED_NAME, FormatError
from stream.whole_file import write_whole

PARTIAL = ".fetch"
"""What the names of files end with until they are whole."""


class Fetched(BaseModel):
    """The content of ``fetched.json``. source: the root that the shards came from. data: the manifest's checksum.
    shards: names of those that are here, all of their files checked."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    data: str
    shards: tuple[str, ...]


def read_fetched(folder: Path) -> Fetched | None:
    """Return what was fetched of a dataset, None if it is whole; raises FormatError if the file cannot be used."""
    path = folder / FETCHED_NAME
    try:
        return Fetched.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise FormatError(
            f"{path}: cannot be used ({error.errors()[0]['msg']}); remove it, and fetch the dataset again"
        ) from None


def write_fetched(folder: Path, fetched: Fetched) -> None:
    """Write the file, whole or not at all."""
    content = json.dumps(fetched.model_dump(), indent=1) + "\n"
    write_whole(folder / FETCHED_NAME, content, durable=True, suffix=PARTIAL)
