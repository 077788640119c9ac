"""The comparison with the disk on little data: every figure is there, and what is missing is one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bench.remote import format_result, main
from tests.bench.conftest import Refused
from tests.fixtures.command import run

needs_nginx = pytest.mark.skipif(not shutil.which("nginx", path="/usr/sbin:/usr/bin"), reason="nginx is not installed")


@needs_nginx
@pytest.mark.long
def test_every_figure_of_reading_in_place_is_measured(oxe_root: Path) -> None:
    size = ("--rounds", "1", "--batch-size", "4", "--latency", "0.001", "--compute", "0.001")
    done = run("--root", str(oxe_root), "--mixture", "bridge,kuka", *size, "--json", module="bench.remote")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    for kinds in result["rates"].values():
        assert kinds["first"]["requests"] > 0 == kinds["second"]["requests"]
        assert all(kinds[kind]["of_disk_cpu_us"] > 0 for kind in ("first", "second"))
    assert result["rates"]["block:64"]["first"]["requests"] < result["rates"]["global"]["first"]["requests"]
    assert "| `global`, first epoch |" in format_result(result)


def test_a_root_that_is_not_there_is_one_line(refused: Refused) -> None:
    code, line = refused(main, ["--root", "/nowhere"])
    assert code == 2 and "/nowhere" in line
