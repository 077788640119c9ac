"""A scratch folder is gone with its process, or with the next run after that was killed."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from beam_jobs.launch import run_pipeline
from beam_jobs.options import SCRATCH
from beam_jobs.scratch import remove_abandoned, scratch_folder
from tests.rlds_dataset import RldsDataset


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_nothing_is_left_after_a_block_or_an_error_in_it(place: Path) -> None:
    with pytest.raises(ValueError, match="inside"), scratch_folder("one-") as folder:
        (folder / "file").write_text("x")
        raise ValueError("inside")
    assert list(place.iterdir()) == []


def test_the_folder_of_a_killed_process_is_removed_by_the_next_one_and_that_of_a_living_one_is_not(place: Path) -> None:
    code = """
import sys
from beam_jobs.launch import run_pipeline
from beam_jobs.options import SCRATCH
from beam_jobs.scratch import scratch_folder
with scratch_folder("one-") as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"TMPDIR": str(place), "PYTHONPATH": ":".join(sys.path)},
    ) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        with scratch_folder("one-") as ours:
            assert set(place.iterdir()) == {theirs, ours}
        other.kill()
        assert other.wait() == -signal.SIGKILL
    assert theirs.is_dir()
    with scratch_folder("two-"):
        assert theirs.is_dir()
    remove_abandoned("one-")
    assert list(place.iterdir()) == []


def test_a_run_that_has_nothing_to_convert_removes_what_a_killed_one_left(place: Path) -> None:
    left = place / f"{SCRATCH}abandoned"
    left.mkdir()
    (left / "lock").touch()
    run_pipeline([], {}, [], num_workers=1, known=[], progress=contextlib.nullcontext())
    assert list(place.iterdir()) == []


def test_a_run_removes_what_one_beside_it_left_when_it_was_killed_meanwhile(
    dataset: RldsDataset, place: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    conversion = dataset.conversion(tmp_path_factory.mktemp("out"))
    left = place / f"{SCRATCH}abandoned"

    @contextlib.contextmanager
    def meanwhile() -> Iterator[None]:
        left.mkdir()
        (left / "lock").touch()
        yield

    run_pipeline(conversion.jobs[:1], {"demo": conversion.plan}, [], num_workers=1, known=[], progress=meanwhile())
    assert not left.exists()
