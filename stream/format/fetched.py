"""``fetched.json``: list of the shards present in a dataset that ``stream.fetch`` copied in part.

Manifest and indexes are those of the complete dataset, so samples have the same numbers, batches the same content and
``loader.json`` the same fingerprints as on the source root. A dataset without this file is complete.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from stream.format.names import FETCHED_NAME
from stream.storage.errors import FormatError, first_fault
from stream.storage.files import write_whole

PARTIAL = ".fetch"
"""End of the names of incomplete files."""


class Fetched(BaseModel):
    """Content of ``fetched.json``.

    Attributes:
        source: Root that the shards came from.
        data: ``Manifest.data``, the checksum without labels.
        shards: Names of the shards that are present and checked; the index of their splits is too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    data: str
    shards: tuple[str, ...]


def read_fetched(folder: Path) -> Fetched | None:
    """Read the file, None if the dataset is complete; raise FormatError if the file cannot be used."""
    path = folder / FETCHED_NAME
    try:
        return Fetched.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise FormatError(f"{path}: {first_fault(error)}; remove it, and fetch the dataset again") from None


def write_fetched(folder: Path, fetched: Fetched) -> None:
    """Write the file atomically."""
    write_whole(folder / FETCHED_NAME, fetched.model_dump_json(indent=1) + "\n", durable=True, suffix=PARTIAL)
