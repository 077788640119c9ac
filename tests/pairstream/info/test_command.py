"""``pairstream info`` tells what a root holds, and lists the episodes that filters leave."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pairstream.__main__
from convert import __version__
from pairstream.info.command import main, parse_condition
from stream import Select, make_loader
from stream.sample.filters import OPERATORS

Printed = Callable[..., str]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    """Run the command; return its output, or its error if it has to fail."""

    def run(*arguments: object, code: int = 0) -> str:
        assert main([str(argument) for argument in arguments]) == code
        output = capsys.readouterr()
        return output.err if code else output.out

    return run


def entries(printed: Printed, *arguments: object) -> dict[str, Any]:
    return {entry["dataset"]: entry for entry in json.loads(printed(*arguments, "--json"))["datasets"]}


def test_a_root_is_described_from_its_manifests(oxe_root: Path, printed: Printed) -> None:
    datasets = entries(printed, oxe_root)
    assert len(datasets) == 29
    bridge = datasets["bridge"]
    folder = oxe_root / "bridge" / bridge["version"]
    files = [path for ending in ("arrow", "arrayrecord") for path in folder.rglob(f"*.{ending}")]
    loader = make_loader(oxe_root, "bridge", batch_size=1, split="+".join(bridge["splits"]))
    assert bridge["bytes"] == sum(path.stat().st_size for path in files)
    assert bridge["samples"] == loader.sizes["bridge"]
    assert bridge["hours"] == pytest.approx(bridge["steps"] / 5 / 3600)
    assert bridge["cameras"] == {"image": {"role": "primary", "sizes": ["64x64"], "depth": False, "codec": "jpeg"}}
    assert (bridge["layout"], bridge["robot"], bridge["rate"]) == ("pairs", "widowx", 5)


def test_people_read_a_table_with_totals(frames_root: Path, printed: Printed) -> None:
    lines = printed(frames_root, "--datasets", "bridge,viola").splitlines()
    assert lines[0].split() == [
        *("dataset", "version", "layout", "episodes", "length", "samples", "size", "rate", "robot", "splits", "cameras")
    ]
    assert [line.split()[0] for line in lines[1:3]] == ["bridge", "viola"]
    assert re.fullmatch(r"2 datasets, \d+ episodes, [1-9]\d* (s|min), \d+ samples, .*B", lines[-1])


def test_filters_count_what_a_loader_keeps_and_write_its_episodes(
    oxe_root: Path, tmp_path: Path, printed: Printed
) -> None:
    language = str(make_loader(oxe_root, "bridge", batch_size=1).describe(0)[0].language)
    out, text = tmp_path / "kept.json", f"language == {json.dumps(language)}"
    datasets = entries(printed, oxe_root, "--datasets", "bridge", "--filter", text, "--episodes-out", out)
    split = "+".join(datasets["bridge"]["splits"])
    loader = make_loader(
        oxe_root, "bridge", batch_size=1, split=split, select=Select(where=[("language", "==", language)])
    )
    kept = {"episodes": loader.describe()["bridge"]["remaining_episodes"], "samples": loader.sizes["bridge"]}
    assert datasets["bridge"]["kept"] == kept
    listed = make_loader(oxe_root, "bridge", batch_size=1, split=split, select=Select(episodes=out))
    assert listed.describe()["bridge"]["remaining_episodes"] == kept["episodes"] > 0
    assert listed.describe()["bridge"]["unknown_episodes"] == {}


def test_a_dataset_without_the_column_or_without_a_match_is_named(
    oxe_root: Path, tmp_path: Path, printed: Printed
) -> None:
    arguments = (oxe_root, "--datasets", "bridge,viola", "--episodes-out", tmp_path / "kept.json")
    output = printed(*arguments, "--filter", "num_steps > 1000000")
    assert "nothing fulfils the filters in: bridge, viola" in output
    assert "leave out of the mixture, as the file has no list of them: bridge, viola" in output
    output = printed(*arguments, "--filter", "action/open_gripper in true,false")
    assert "without a column of the filters: viola" in output
    assert list(json.loads((tmp_path / "kept.json").read_text())) == ["bridge"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--filter", "num_steps"], "expected 'COLUMN OPERATOR VALUE'"),
        (["--filter", "num_steps >= many"], "cannot compare"),
        (["--filter", "nun_steps >= 3"], "no column 'nun_steps'"),
        (["--datasets", "brigde"], "no dataset 'brigde'"),
        (["--episodes-out", "kept.json"], "--episodes-out without --filter"),
        (["--datasets", ","], "--datasets names no dataset"),
    ],
)
def test_a_wrong_argument_is_one_line(arguments: list[str], message: str, oxe_root: Path, printed: Printed) -> None:
    if "--datasets" not in arguments:
        arguments = [*arguments, "--datasets", "bridge"]
    output = printed(oxe_root, *arguments, code=2)
    assert message in output and len(output.splitlines()) == 1


def test_a_damaged_manifest_does_not_hide_the_other_datasets(
    oxe_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("bridge", "viola", "kuka"):
        shutil.copytree(oxe_root / name, tmp_path / name)
    (path,) = tmp_path.glob("bridge/*/dataset.json")
    path.write_text(path.read_text().replace("widowx", "sawyer"))
    next(tmp_path.glob("kuka/*/dataset.json")).unlink()
    assert main([str(tmp_path)]) == 1
    output = capsys.readouterr()
    assert "viola" in output.out and "not complete: kuka" in output.out
    assert output.err.startswith(f"error: {path}: its checksum is wrong")


def test_every_operator_of_filters_can_be_typed() -> None:
    for how in OPERATORS:
        assert parse_condition(f"language {how} 3")[:2] == ("language", how)
    assert parse_condition('robot not in ["a", "b"]') == ("robot", "not in", ["a", "b"])
    assert parse_condition("language contains true") == ("language", "contains", "true")
    assert np.isclose(parse_condition("reward >= 1e-3")[2], 0.001)


def test_the_command_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert pairstream.__main__.main(["--version"]) == 0
    assert capsys.readouterr().out == f"pairstream {__version__}\n"
