"""However a training run ends, nothing of the loader stays behind, and the next one starts."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import traceback
import weakref
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import psutil
import pytest

from stream import WorkerError, Workers, digest, make_loader
from stream.base.errors import FormatError, RingError, StreamError
from stream.loader.iterator import LoaderIterator
from stream.storage.remote import RemoteError
from tests.fixtures.command import LIGHT, TIMEOUT, wait_until
from tests.stream.transforms import FailsAt, Slow

REPOSITORY = Path(__file__).resolve().parents[3]
GONE_S = 60.0
"""Seconds after which a process counts as left behind, on a busy machine too."""


def workers_of(pid: int) -> list[psutil.Process]:
    """Return the worker processes of a process."""
    workers = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                workers += [child] if "stream.worker" in child.cmdline() else []
    return workers


@pytest.fixture
def others() -> set[psutil.Process]:
    """The workers that other tests of this process still have."""
    gc.collect()
    return set(workers_of(os.getpid()))


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    running = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            running += [process] if process.status() != psutil.STATUS_ZOMBIE else []
    return running


def named_memory(pid: int) -> list[str]:
    """Return the files in /dev/shm that a process has mapped: they would stay if it were killed."""
    mapped = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [line for line in mapped if "/dev/shm/" in line and not line.endswith("(deleted)")]


SCRIPT = f"""
{LIGHT}
import os, sys
from stream import make_loader
iterator = iter(make_loader({{root!r}}, "oxe29", batch_size=24, num_workers=2))
for step in range(3):
    batch = next(iterator)
print("ready", flush=True)
sys.stdin.readline()
{{end}}
"""


@pytest.mark.parametrize(
    ("end", "by", "code"),
    [
        ("pass", None, 0),
        pytest.param("raise ValueError('the loss is NaN')", None, 1, marks=pytest.mark.long),
        pytest.param("os._exit(7)", None, 7, marks=pytest.mark.long),
        ("for batch in iterator: pass", signal.SIGINT, -signal.SIGINT),
        pytest.param("for batch in iterator: pass", signal.SIGTERM, -signal.SIGTERM, marks=pytest.mark.long),
        ("for batch in iterator: pass", signal.SIGKILL, -signal.SIGKILL),
    ],
    ids=["normal", "exception", "os._exit", "ctrl-c", "terminate", "kill"],
)
def test_nothing_is_left_when_the_trainer_ends(
    oxe_root: Path, tmp_path: Path, end: str, by: signal.Signals | None, code: int
) -> None:
    # Without a main guard, and from another folder: the workers import what the trainer can.
    code_text = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})" + SCRIPT.format(root=str(oxe_root), end=end)
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    trainer = subprocess.Popen([sys.executable, "-c", code_text], **pipes, text=True, cwd=tmp_path, env=environment)
    try:
        assert trainer.stdin is not None and trainer.stdout is not None
        assert trainer.stdout.readline() == "ready\n"
        seen = workers_of(trainer.pid)
        assert len(seen) == 2
        assert not [line for pid in (trainer.pid, *(worker.pid for worker in seen)) for line in named_memory(pid)]
        trainer.stdin.write("go on\n")
        trainer.stdin.flush()
        if by is not None:
            trainer.send_signal(by)
        _, errors = trainer.communicate(timeout=TIMEOUT)
    finally:
        trainer.kill()
    assert trainer.returncode == code, errors
    assert wait_until(lambda: not alive(seen), seconds=GONE_S)
    assert "resource_tracker" not in errors
    # A worker that says anything of its own end would spoil the one error that counts.
    assert errors.count("Traceback") == (1 if "raise" in end or by == signal.SIGINT else 0), errors
    assert {entry.name for entry in tmp_path.iterdir()} <= {"__pycache__"}


def batches(oxe_root: Path, *, num_workers: int = 2) -> LoaderIterator:
    return iter(make_loader(oxe_root, "oxe29", batch_size=24, num_workers=num_workers))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dropped_iterator_ends_its_workers(oxe_root: Path, num_workers: int, others: set[psutil.Process]) -> None:
    iterator = batches(oxe_root, num_workers=num_workers)
    kept = next(iterator)
    content = digest(kept)
    workers = [worker for worker in workers_of(os.getpid()) if worker not in others]
    assert len(workers) == num_workers
    del iterator
    gc.collect()
    assert wait_until(lambda: not alive(workers), seconds=GONE_S)
    assert digest(kept) == content


def test_workers_may_keep_more_files_open_than_the_trainer(oxe_root: Path, others: set[psutil.Process]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    try:
        iterator = batches(oxe_root, num_workers=1)
        next(iterator)
        (worker,) = set(workers_of(os.getpid())) - others
        assert worker.rlimit(psutil.RLIMIT_NOFILE) == (hard, hard)
        iterator.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.long
def test_iterators_made_and_dropped_leave_nothing(oxe_root: Path, others: set[psutil.Process]) -> None:
    loader = make_loader(oxe_root, "oxe29", batch_size=24, num_workers=1, action=None, state=None, language=None)
    next(iter(loader))
    files, mapped = len(os.listdir("/proc/self/fd")), set(named_memory(os.getpid()))
    for number in range(20):
        iterator = iter(loader)
        if number % 10 == 0:
            next(iterator)
        elif number % 2:
            iterator.start_prefetch()
        del iterator
    gc.collect()
    assert wait_until(lambda: set(workers_of(os.getpid())) <= others, seconds=GONE_S)
    # The loader itself keeps files open: those of the shards that it read.
    assert len(os.listdir("/proc/self/fd")) <= files
    assert set(named_memory(os.getpid())) <= mapped


def test_a_killed_worker_is_one_error_at_its_step_and_set_state_goes_on(
    oxe_root: Path, others: set[psutil.Process]
) -> None:
    loader = make_loader(oxe_root, "oxe29", batch_size=24, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    victim = min(set(workers_of(os.getpid())) - others, key=lambda worker: worker.pid)
    victim.suspend()
    time.sleep(0.3)
    victim.resume()
    # A worker that was stopped holds up nothing once it continues.
    for step in range(1, 10):
        assert digest(next(iterator)) == digest(loader.batch_at(step))
    victim.kill()
    step = 10
    with pytest.raises(WorkerError, match=r"worker \d .*was killed by SIGKILL") as caught:
        while step < 30:
            assert digest(next(iterator)) == digest(loader.batch_at(step))
            step += 1
    assert caught.value.step in (step, -1)
    assert iterator.get_state()["step"] == step
    with pytest.raises(WorkerError) as repeated:
        next(iterator)
    assert repeated.value is caught.value
    assert wait_until(lambda: set(workers_of(os.getpid())) <= others, seconds=GONE_S)
    iterator.set_state(iterator.get_state())
    for following in (step, step + 1):
        assert digest(next(iterator)) == digest(loader.batch_at(following))
    iterator.close()


def test_ctrl_c_while_waiting_loses_no_batch(oxe_root: Path) -> None:
    loader = make_loader(oxe_root, "oxe29", batch_size=24, num_workers=1, transforms=[Slow()])
    iterator = iter(loader)
    next(iterator)

    def interrupt(number: int, frame: FrameType | None) -> None:
        names = [caller.f_code.co_name for caller, _ in traceback.walk_stack(frame)]
        if "take" in names:
            raise KeyboardInterrupt
        # Not waiting for a batch yet, or no longer.
        signal.setitimer(signal.ITIMER_REAL, 0.01)

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            while True:
                step = iterator.get_state()["step"]
                next(iterator)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert iterator.get_state()["step"] == step
    assert next(iterator)["sample"][0] == step * 24
    iterator.close()


def test_a_transform_that_fails_is_one_error_with_its_traceback(oxe_root: Path) -> None:
    for num_workers in (0, 1):
        loader = make_loader(oxe_root, "oxe29", batch_size=24, num_workers=num_workers, transforms=[FailsAt(24)])
        iterator = iter(loader)
        assert next(iterator)["sample"][0] == 0
        with pytest.raises(WorkerError, match=r"(?s)step 1: .*FailsAt: sample 24 is unlucky") as caught:
            next(iterator)
        assert caught.value.step == 1
        iterator.close()


@pytest.mark.parametrize("error", [RemoteError("gone", refused=True), FormatError("gone"), RingError("gone")], ids=type)
def test_an_error_of_this_package_is_the_same_in_a_worker(oxe_root: Path, error: Exception) -> None:
    for num_workers, source in ((0, "gone"), (1, r"step 1: worker 0 \(process \d+\): gone")):
        transforms = [FailsAt(24, error)]
        iterator = iter(make_loader(oxe_root, "oxe29", batch_size=24, num_workers=num_workers, transforms=transforms))
        next(iterator)
        with pytest.raises(type(error), match=f"^{source}") as caught:
            next(iterator)
        assert getattr(caught.value, "refused", None) == getattr(error, "refused", None)
        iterator.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_that_are_all_kept_stay_right_while_the_ring_grows(oxe_root: Path, num_workers: int) -> None:
    loader = make_loader(oxe_root, "oxe29", batch_size=24, num_workers=num_workers)
    iterator = iter(loader)
    kept = [next(iterator) for _ in range(30)]
    assert loader.stats()["ring_slots"] >= 30
    # Views keep their batch as well as whole arrays do.
    views = [batch["frames"][3:5, 1, ::2] for batch in kept[:10]]
    expected = [loader.batch_at(step) for step in range(30)]
    del kept[:10]
    gc.collect()
    for _ in range(10):
        next(iterator)
    for step, view in enumerate(views):
        np.testing.assert_array_equal(view, expected[step]["frames"][3:5, 1, ::2])
    for step, batch in enumerate(kept, start=10):
        assert digest(batch) == digest(expected[step])
    iterator.close()
    assert digest(kept[-1]) == digest(expected[29])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_that_are_not_kept_take_a_constant_number_of_slots(oxe_root: Path, num_workers: int) -> None:
    loader = make_loader(oxe_root, "oxe29", batch_size=24, num_workers=num_workers)
    slots = []
    for step, batch in enumerate(loader):
        assert batch["sample"][0] == step * 24
        slots.append(loader.stats()["ring_slots"])
        if step == 60:
            break
    assert slots[-1] == slots[8] <= 8


@pytest.mark.long
def test_python_c_and_a_notebook_need_no_main_guard(oxe_root: Path, tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    code = textwrap.dedent(
        f"""
        {LIGHT}; sys.path.insert(0, {str(REPOSITORY)!r})
        import grain, numpy as np
        from stream import make_loader, digest

        class Darker(grain.transforms.Map):  # defined in the notebook itself
            def map(self, element):
                return {{**element, "frames": element["frames"] // 2}}

        loader = make_loader({str(oxe_root)!r}, "oxe29", batch_size=8, num_workers=1, transforms=[Darker()])
        print(digest(next(iter(loader))) == digest(loader.batch_at(0)))
        """
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(notebook, timeout=TIMEOUT, startup_timeout=TIMEOUT, kernel_name="python3").execute()
    assert [output.text for output in notebook.cells[0].outputs if output.name == "stdout"] == ["True\n"]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=TIMEOUT)
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr


def test_modules_of_the_current_folder_do_not_get_into_a_worker(oxe_root: Path, tmp_path: Path) -> None:
    """Keep out modules that the trainer would not import: a user's folder may have a stream.py."""
    (tmp_path / "script").mkdir()
    (tmp_path / "stream.py").write_text("raise ImportError('this is another stream')\n")
    script = tmp_path / "script" / "train.py"
    script.write_text(SCRIPT.format(root=str(oxe_root), end="print(len(batch['language']))"))
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        timeout=TIMEOUT,
    )
    assert (done.stdout, done.returncode) == ("ready\n24\n", 0), done.stderr


def test_a_forked_child_is_told_to_make_its_own_iterator(oxe_root: Path) -> None:
    iterator = batches(oxe_root, num_workers=1)
    next(iterator)
    child = os.fork()
    if child == 0:
        try:
            next(iterator)
        except RuntimeError as error:
            os._exit(5 if "fork" in str(error) else 6)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    # A child that lets go of it leaves its parent's workers alone.
    leaving = os.fork()
    if leaving == 0:
        del iterator
        gc.collect()
        os._exit(0)
    os.waitpid(leaving, 0)
    assert next(iterator)["sample"][0] == 24
    iterator.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iterator_that_went_on_after_an_error_ends_when_it_is_dropped(oxe_root: Path, num_workers: int) -> None:
    loader = make_loader(oxe_root, "bridge", batch_size=16, num_workers=num_workers, transforms=[FailsAt(2 * 16)])
    gc.collect()
    before = set(psutil.Process().children())
    gc.disable()
    try:
        iterator = iter(loader)
        with contextlib.suppress(StreamError):
            for _ in range(3):
                next(iterator)
        assert iterator.step == 2
        iterator.set_state(loader.state_at(3))
        next(iterator)
        workers = set(psutil.Process().children()) - before
        assert len(workers) == num_workers
        dropped = weakref.ref(iterator)
        del iterator
        assert dropped() is None
        assert psutil.wait_procs(workers, timeout=GONE_S)[1] == []
    finally:
        gc.enable()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_small_arrays_that_are_kept_keep_no_slot(oxe_root: Path, num_workers: int) -> None:
    loader = make_loader(oxe_root, "oxe29", batch_size=24, num_workers=num_workers)
    iterator = iter(loader)
    kept = [(batch["action"], batch["action_mask"][1:], batch["step"]) for batch in map(next, [iterator] * 40)]
    assert loader.stats()["ring_slots"] <= 8
    for step in (0, 39):
        expected = loader.batch_at(step)
        for array, name in zip(kept[step], ("action", "action_mask", "step"), strict=True):
            np.testing.assert_array_equal(array, expected[name][1:] if name == "action_mask" else expected[name])
    iterator.close()


def test_a_batch_that_was_forgotten_does_not_count_for_the_same_step_of_later(oxe_root: Path, tmp_path: Path) -> None:
    shutil.copytree(oxe_root / "bridge", tmp_path / "bridge")
    for path in tmp_path.rglob("train-00000*.arrayrecord"):
        content = path.read_bytes()
        third = len(content) // 3
        path.write_bytes(content[:third] + bytes(third) + content[2 * third :])
    arguments: Any = {"batch_size": 20, "on_error": "replace", "num_epochs": 1}
    loader = make_loader(tmp_path, "bridge", num_workers=Workers(1, prefetch=1), **arguments)
    alone = make_loader(tmp_path, "bridge", num_workers=Workers(prefetch=1), **arguments)
    expected = next(iter(alone))
    assert alone.stats()["replaced"] > 0
    iterator = iter(loader)
    iterator.start_prefetch()
    for _ in range(3):
        iterator.seek(0)
        iterator.start_prefetch()
    assert digest(next(iterator)) == digest(expected)
    assert loader.stats()["replaced"] == alone.stats()["replaced"]
    iterator.close()
