"""Real processes that answer, fail, die, hang or lose their parent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bench.measure.child import ChildFailed, ask
from tests.fixtures.command import TIMEOUT, wait_until

CHILD = """
import os, signal, sys, time

def answer(request):
    print("libraries print")
    if request["do"] == "raise":
        raise ValueError("no such thing")
    if request["do"] == "die":
        print("last words", file=sys.stderr)
        os.kill(os.getpid(), signal.SIGKILL)
    if request["do"] == "hang":
        time.sleep(600)
    return {"twice": 2 * request["number"]}
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "some_child.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "some_child"


def test_a_result_comes_back_whatever_is_printed(module: str) -> None:
    result = ask(module, {"do": "work", "number": 21})
    assert result["twice"] == 42
    assert 0 <= result["exit_s"] < 60


@pytest.mark.parametrize(
    ("do", "message"),
    [
        ("raise", "ValueError: no such thing"),
        ("die", "was killed by SIGKILL, as the kernel does when memory runs out: last words"),
    ],
)
def test_an_end_without_a_result_says_how(module: str, do: str, message: str) -> None:
    with pytest.raises(ChildFailed) as error:
        ask(module, {"do": do, "number": 1})
    assert str(error.value) == message


def test_one_that_takes_too_long_is_ended(module: str) -> None:
    with pytest.raises(ChildFailed, match="took longer than 1 s"):
        ask(module, {"do": "hang", "number": 1}, timeout=1.0)


def test_it_ends_with_whoever_asked(module: str) -> None:
    code = "from bench.measure.child import ask; ask('some_child', {'do': 'hang', 'number': 1})"
    asker = subprocess.Popen([sys.executable, "-c", code])
    try:
        assert wait_until(lambda: bool(psutil.Process(asker.pid).children()), seconds=TIMEOUT)
        (child,) = psutil.Process(asker.pid).children()
        assert wait_until(lambda: "some_child" in " ".join(child.cmdline()), seconds=TIMEOUT)
    finally:
        asker.kill()
        asker.wait()
    assert wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, seconds=TIMEOUT)
