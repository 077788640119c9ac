"""A kill before any change of a folder leaves the labels of before or the new ones, and the next command clears up."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from convert.verify.command import verify_root
from tests.stream.label.conftest import Action, attach, remove, value_of


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


@pytest.mark.parametrize(
    ("start", "action", "old", "new"),
    [
        pytest.param(None, attach(5), None, 5, id="attaching", marks=pytest.mark.long),
        pytest.param(attach(5), attach(7), 5, 7, id="replacing"),
        pytest.param(attach(5), remove, 5, None, id="removing", marks=pytest.mark.long),
    ],
)
def test_a_kill_leaves_the_old_or_the_new(
    start: Action | None, action: Action, old: float | None, new: float | None, root: Path, tmp_path: Path
) -> None:
    if start is not None:
        start(root)
    said = {problem.file for problem in verify_root(root, jobs=1).problems}
    seen = []
    for changes in range(100):
        copy = tmp_path / str(changes)
        shutil.copytree(root, copy)
        was_killed = killed(action, copy, changes=changes)
        seen.append(value_of(copy))
        problem_files = {str(fault.file).replace(str(copy), str(root)) for fault in verify_root(copy, jobs=1).problems}
        assert problem_files == said, f"after {changes} changes"
        if not was_killed:
            break
        if seen[-1] != new or action is not remove:
            action(copy)
        else:
            # The next command of any kind clears up.
            attach(9)(copy)
            remove(copy)
        assert value_of(copy) == new
        assert list(copy.rglob(".*")) == [], f"after {changes} changes"
        shutil.rmtree(copy)
    # There are kills before and after the moment from which it counts.
    assert seen == sorted(seen, key=lambda value: value == new) and seen[0] == old and seen.count(new) > 1
    assert len(seen) > 5
