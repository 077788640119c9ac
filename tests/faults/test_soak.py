"""The soak for some seconds: what it does to the loader, and that it notices another batch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.faults.soak import RESULT_FILE, differences, format_result, fresh_digests, main
from tests.fixtures.command import run


@pytest.fixture(scope="module")
def loader(oxe_root: Path) -> dict[str, Any]:
    return {"root": str(oxe_root), "mixture": {"bridge": 1, "kuka": 2}, "batch_size": 4, "seed": 3}


@pytest.mark.long
def test_a_short_soak_kills_and_rebuilds_and_finds_nothing_wrong(oxe_root: Path, tmp_path: Path) -> None:
    size = ["--minutes", "0.1", "--event-every", "0.5", "--batch-size", "8", "--num-workers", "1", "--val-steps", "2"]
    # Of four episodes the last tenth is none, so whoever gets as far as the evaluation needs another split.
    members = {name: {"weight": 1, "splits": {"train": "train", "val": "train"}} for name in ("bridge", "kuka")}
    mixture = tmp_path / "mixture.yaml"
    mixture.write_text(json.dumps({"members": members}))
    done = run(
        *size,
        "--mixture",
        str(mixture),
        "--root",
        str(oxe_root),
        "--out",
        str(tmp_path),
        "--json",
        module="tests.faults.soak",
    )
    assert done.code == 0, done.out + done.err
    result = json.loads(done.out)
    assert json.loads((tmp_path / RESULT_FILE).read_text()) == result
    assert result["problems"] == []
    assert result["checked"] > 0 and sum(result["events"].values()) >= 1
    assert len(result["memory"]["over_time"]) == sum(result["events"].values())
    assert (tmp_path / "soak.png").stat().st_size > 1000
    assert "| problems | none |" in format_result(result)


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("nginx", path="/usr/sbin:/usr/bin"), reason="nginx is not installed")
def test_a_soak_in_place_stops_the_store_and_damages_the_cache(oxe_root: Path, tmp_path: Path) -> None:
    members = {name: {"weight": 1, "splits": {"train": "train", "val": "train"}} for name in ("bridge", "kuka")}
    (tmp_path / "mixture.yaml").write_text(json.dumps({"members": members}))
    size = ("--minutes", "0.3", "--event-every", "0.5", "--batch-size", "8", "--num-workers", "1", "--val-steps", "2")
    options = (*size, "--remote", "--root", str(oxe_root), "--mixture", str(tmp_path / "mixture.yaml"), "--json")
    done = run(*options, module="tests.faults.soak")
    assert done.code == 0, done.out + done.err
    result = json.loads(done.out)
    assert result["problems"] == [] and result["checked"] > 0


@pytest.mark.long
def test_a_batch_that_is_not_a_fresh_loaders_is_named(loader: dict[str, Any]) -> None:
    right = fresh_digests(loader, [0, 5])
    assert differences(loader, right) == []
    (difference,) = differences(loader, {**right, 5: right[0]})
    assert difference.startswith("step 5: batch ")
    assert len(differences({**loader, "seed": 4}, right)) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "message"), [(("--minutes", "0"), 2, "found '0'"), (("--root", "/nowhere"), 2, "/nowhere")]
)
def test_what_cannot_be_done_is_one_line(
    arguments: tuple[str, ...], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        exit_code: Any = main(list(arguments))
    except SystemExit as ended:
        exit_code = ended.code
    (line,) = capsys.readouterr().err.splitlines()
    assert exit_code == code
    assert line.startswith("error: ") and message in line
