"""``fetched.json``: list of the shards that are present where ``stream.fetch`` copied only those that were needed.

The manifest beside it is that of the complete dataset, and so is the index of each split that has a shard here. So
samples have the same numbers, batches the same content and ``loader.json`` the same fingerprints as on the root that
they came from. A dataset without this file is complete.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from stream.format.names import FETCHED_NAME
from stream.storage.atomic import write_whole
from stream.storage.errors import FormatError

PARTIAL = ".fetch"
"""End of the names of files that are not complete yet."""


class Fetched(BaseModel):
    """The content of ``fetched.json``.

    Attributes:
        source: Root that the shards came from.
        data: Checksum of the manifest.
        shards: Names of the shards whose files are present and checked, together with the index of their splits.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    data: str
    shards: tuple[str, ...]


def read_fetched(folder: Path) -> Fetched | None:
    """Return what was fetched of a dataset, None if it is complete; raises FormatError if the file cannot be used."""
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
    """Write the file atomically."""
    write_whole(folder / FETCHED_NAME, fetched.model_dump_json(indent=1) + "\n", durable=True, suffix=PARTIAL)
