"""One conversion that tests give to many runners, to compare what comes out."""

from __future__ import annotations

import socket
from pathlib import Path

from convert.errors import EXIT_DAMAGED
from tests.command import Result
from tests.rlds_dataset import RldsDataset

SHARDS = 9
"""Of ``write_damaged_dataset``."""


def arguments(dataset: RldsDataset, output: Path) -> list[str]:
    common = ["--datasets", "demo", "--source", str(dataset.root), "--output", str(output)]
    return [*common, "--config", str(dataset.registry()), "--image-size", "32x48"]


def assert_complete(result: Result) -> None:
    assert result.code == EXIT_DAMAGED, result.err
    assert "complete, but damaged input was left out: demo (" in result.error()


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
