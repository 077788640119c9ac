"""What the Python of the pages runs on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.command import REPOSITORY
from tests.stream.conftest import frames_root, oxe_root

__all__ = ["frames_root", "oxe_root"]


@pytest.fixture
def halves(tmp_path: Path) -> str:
    """The mixture oxe29 with the second half of each dataset for validation: of four episodes a tenth is none."""
    path = tmp_path / "halves.yaml"
    path.write_text((REPOSITORY / "configs/mixtures/oxe29.yaml").read_text().replace("90%", "50%"))
    return f'"{path}"'


@pytest.fixture
def closing() -> Iterator[dict[str, Any]]:
    """Names of a block that was run, whose loaders' workers end afterwards."""
    names: dict[str, Any] = {}
    yield names
    for value in names.values():
        if hasattr(value, "close") and hasattr(value, "get_state"):
            value.close()
