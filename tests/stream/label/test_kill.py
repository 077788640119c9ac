"""A kill before any change of a folder leaves the labels of before or the new ones, and the next command clears up."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stream
from convert.verify.command import verify_root
from stream.format.catalog import Catalog
from stream.format.index import open_index
from tests.stream.index_root import write_dataset

Action = Callable[[Path], Any]


def attach(value: float) -> Action:
    table = {"episode": [0, 1], "step": [1, 2], "value": np.array([value, 1], "f4")}
    return lambda root: stream.add_labels(root, "demo", table, split="train", overwrite=True)


def remove(root: Path) -> None:
    stream.remove_labels(root, "demo", "value")


def killed(action: Action, root: Path, *, changes: int) -> bool:
    """Do something in a process that is killed before its n-th change of a folder; return whether it was."""
    if child := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, -signal.SIGKILL)
        return code != 0
    left = changes

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **more: Any) -> Any:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return change(*arguments, **more)

        return counting

    for name in ("replace", "unlink", "mkdir", "rmdir", "fsync"):
        setattr(os, name, counted(getattr(os, name)))
    try:
        action(root)
    except BaseException:
        os._exit(1)
    os._exit(0)


def value_of(root: Path) -> float | None:
    """Return the label of episode 0, step 1, as a loader would see it."""
    steps = open_index(Catalog(root).open("demo"), "train").steps
    return float(steps.array("value")[1]) if "value" in steps.columns else None


@pytest.mark.parametrize(
    ("start", "action", "old", "new"),
    [
        pytest.param(None, attach(5), None, 5, id="attaching", marks=pytest.mark.long),
        pytest.param(attach(5), attach(7), 5, 7, id="replacing"),
        pytest.param(attach(5), remove, 5, None, id="removing", marks=pytest.mark.long),
    ],
)
def test_a_kill_leaves_the_old_or_the_new(
    start: Action | None, action: Action, old: float | None, new: float | None, tmp_path: Path
) -> None:
    write_dataset(tmp_path / "root", "demo", {"train": [[5, 4]]})
    if start is not None:
        start(tmp_path / "root")
    said = {problem.file for problem in verify_root(tmp_path / "root", jobs=1).problems}
    seen = []
    for changes in range(100):
        root = tmp_path / str(changes)
        shutil.copytree(tmp_path / "root", root)
        was_killed = killed(action, root, changes=changes)
        seen.append(value_of(root))
        problems = verify_root(root, jobs=1).problems
        problem_files = {str(fault.file).replace(str(root), str(tmp_path / "root")) for fault in problems}
        assert problem_files == said, f"after {changes} changes"
        if not was_killed:
            break
        if seen[-1] != new or action is not remove:
            action(root)
        else:
            # The next command of any kind clears up.
            attach(9)(root)
            remove(root)
        assert value_of(root) == new
        hidden = [path for path in root.rglob("*") if path.name.startswith(".")]
        assert hidden == [], f"after {changes} changes"
        shutil.rmtree(root)
    # There are kills before and after the moment from which it counts.
    assert seen == sorted(seen, key=lambda value: value == new) and seen[0] == old and seen.count(new) > 1
    assert len(seen) > 5
