"""A run leaves no scratch folder, and removes the folders of killed runs."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest

from beam_jobs.launch import run_pipeline
from beam_jobs.options import SCRATCH, choose_runner
from convert.storage.staging import machine
from tests.fixtures.datasets.rlds_dataset import RldsDataset

LOCAL = choose_runner([], num_workers=1, program_flags=[])


@pytest.fixture
def scratch_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def abandon(scratch_root: Path) -> Path:
    """The folder of a process that was killed."""
    folder = scratch_root / f"{SCRATCH}{machine()}-abandoned"
    folder.mkdir()
    return folder


def test_a_run_that_has_nothing_to_convert_removes_what_a_killed_one_left(scratch_root: Path) -> None:
    abandon(scratch_root)
    run_pipeline([], {}, LOCAL, progress=contextlib.nullcontext())
    assert list(scratch_root.iterdir()) == []


def test_a_run_removes_what_one_beside_it_left_when_it_was_killed_meanwhile(
    dataset: RldsDataset, scratch_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    conversion = dataset.conversion(tmp_path_factory.mktemp("out"))
    conversion.journal.begin(conversion.parameters)
    left: list[Path] = []

    @contextlib.contextmanager
    def meanwhile() -> Iterator[None]:
        left.append(abandon(scratch_root))
        yield

    run_pipeline(conversion.jobs[:1], {"demo": conversion.plan}, LOCAL, progress=meanwhile())
    assert not left[0].exists()


def test_the_folder_of_beams_pipeline_lies_where_a_sweep_removes_it(
    dataset: RldsDataset, scratch_root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    created: list[Path] = []

    def make(**arguments: Any) -> beam.Pipeline:
        pipeline = real(**arguments)
        created.append(Path(pipeline.local_tempdir))
        raise KeyboardInterrupt

    real = beam.Pipeline
    monkeypatch.setattr(beam, "Pipeline", make)
    conversion = dataset.conversion(tmp_path_factory.mktemp("out"))
    with pytest.raises(KeyboardInterrupt):
        run_pipeline(conversion.jobs[:1], {"demo": conversion.plan}, LOCAL, progress=contextlib.nullcontext())
    assert created[0].parent.name.startswith(f"{SCRATCH}{machine()}-")
    assert list(scratch_root.iterdir()) == []
