"""The notebook runs from its first cell to its last, and shows pictures and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.command import REPOSITORY

nbformat: Any = pytest.importorskip("nbformat")
nbclient: Any = pytest.importorskip("nbclient")


@pytest.mark.long
def test_the_tour_runs(frames_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOUR_ROOT", str(frames_root))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    notebook = nbformat.read(REPOSITORY / "examples/tour.ipynb", as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=400, startup_timeout=200, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("text/html" in data for data in shown) == 4


def test_the_tour_is_valid_and_kept_without_outputs() -> None:
    notebook = nbformat.read(REPOSITORY / "examples/tour.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
