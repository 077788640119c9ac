"""The soak for some seconds: what it does to the loader, and that it notices another batch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.bench.conftest import Refused
from tests.faults.shared_memory import own_shared_memory
from tests.faults.soak import RESULT_FILE, differences, format_result, fresh_digests, main
from tests.fixtures.command import run, written


@pytest.fixture(scope="module")
def loader(oxe_root: Path) -> dict[str, Any]:
    return {"root": str(oxe_root), "mixture": {"bridge": 1, "kuka": 2}, "batch_size": 4, "seed": 3}


def soak(oxe_root: Path, folder: Path, *options: str) -> dict[str, Any]:
    """Return the result of a soak of some seconds."""
    size = ("--event-every", "0.5", "--batch-size", "8", "--num-workers", "1", "--val-steps", "2")
    # Of four episodes the last tenth is none, so whoever gets as far as the evaluation needs another split.
    members = {name: {"weight": 1, "splits": {"train": "train", "val": "train"}} for name in ("bridge", "kuka")}
    (folder / "mixture.yaml").write_text(json.dumps({"members": members}))
    data = ("--root", str(oxe_root), "--mixture", str(folder / "mixture.yaml"))
    shared_memory = folder / "shm"
    through = own_shared_memory(shared_memory)
    done = run(*data, *size, *options, "--json", module="tests.faults.soak", through=through)
    assert done.code == 0, done.out + done.err
    assert written(shared_memory, "*") == []
    result: dict[str, Any] = json.loads(done.out)
    assert result["problems"] == [] and result["checked"] > 0
    return result


@pytest.mark.long
def test_a_short_soak_kills_and_rebuilds_and_finds_nothing_wrong(oxe_root: Path, tmp_path: Path) -> None:
    result = soak(oxe_root, tmp_path, "--minutes", "0.1", "--out", str(tmp_path))
    assert json.loads((tmp_path / RESULT_FILE).read_text()) == result
    assert len(result["memory"]["over_time"]) == sum(result["events"].values()) >= 1
    assert (tmp_path / "soak.png").stat().st_size > 1000
    assert "| problems | none |" in format_result(result)


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("nginx", path="/usr/sbin:/usr/bin"), reason="nginx is not installed")
def test_a_soak_in_place_stops_the_store_and_damages_the_cache(oxe_root: Path, tmp_path: Path) -> None:
    soak(oxe_root, tmp_path, "--minutes", "0.3", "--remote")


@pytest.mark.long
def test_a_batch_that_is_not_a_fresh_loaders_is_named(loader: dict[str, Any]) -> None:
    right = fresh_digests(loader, [0, 5])
    assert differences(loader, right) == []
    (difference,) = differences(loader, {**right, 5: right[0]})
    assert difference.startswith("step 5: batch ")
    assert len(differences({**loader, "seed": 4}, right)) == 2


@pytest.mark.parametrize(
    ("arguments", "message"), [(("--minutes", "0"), "found '0'"), (("--root", "/nowhere"), "/nowhere")]
)
def test_what_cannot_be_done_is_one_line(arguments: tuple[str, ...], message: str, refused: Refused) -> None:
    code, line = refused(main, arguments)
    assert code == 2 and message in line
