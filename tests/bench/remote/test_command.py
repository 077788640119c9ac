"""The comparison with the disk on little data: every figure is there, and what is missing is one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bench.remote import format_result, main
from tests.fixtures.command import run

needs_nginx = pytest.mark.skipif(not shutil.which("nginx", path="/usr/sbin:/usr/bin"), reason="nginx is not installed")


@needs_nginx
@pytest.mark.long
def test_every_figure_of_reading_in_place_is_measured(oxe_root: Path) -> None:
    size = (
        "--rounds",
        "1",
        "--batch-size",
        "4",
        "--latency",
        "0.001",
        "--compute",
        "0.001",
        "--mixture",
        "bridge,kuka",
    )
    done = run("--root", str(oxe_root), *size, "--json", module="bench.remote")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    for kinds in result["rates"].values():
        assert kinds["first"]["requests"] > 0 == kinds["second"]["requests"]
        assert all(kinds[kind]["of_disk_cpu_us"] > 0 for kind in ("first", "second"))
    assert result["rates"]["block:64"]["first"]["requests"] < result["rates"]["global"]["first"]["requests"]
    assert set(result["libraries"]) == {"obstore", "s3fs"}
    assert "| `global`, first epoch |" in format_result(result)


@needs_nginx
@pytest.mark.long
def test_a_soak_in_place_stops_the_store_and_damages_the_cache(oxe_root: Path, tmp_path: Path) -> None:
    members = {name: {"weight": 1, "splits": {"train": "train", "val": "train"}} for name in ("bridge", "kuka")}
    (tmp_path / "mixture.yaml").write_text(json.dumps({"members": members}))
    size = ("--minutes", "0.3", "--event-every", "0.5", "--batch-size", "8", "--num-workers", "1", "--val-steps", "2")
    given = (*size, "--remote", "--root", str(oxe_root), "--mixture", str(tmp_path / "mixture.yaml"), "--json")
    done = run(*given, module="bench.soak")
    assert done.code == 0, done.out + done.err
    result = json.loads(done.out)
    assert result["problems"] == [] and result["checked"] > 0


def test_a_root_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--root", "/nowhere"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "/nowhere" in line
