"""The loader is measured on the root that its tests have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.stream.conftest import frames_root, oxe_root

__all__ = ["frames_root", "oxe_root"]

Refused = Callable[[Callable[[Sequence[str]], int], Sequence[str]], tuple[int, str]]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command with arguments that it cannot work with; gives its exit code and the one line that it prints."""

    def run(main: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> tuple[int, str]:
        try:
            code: Any = main(arguments)
        except SystemExit as ended:
            code = ended.code
        captured = capsys.readouterr()
        (line,) = captured.err.splitlines()
        assert captured.out == ""
        assert line.startswith("error: ")
        return code, line

    return run
