"""A slice that is pushed to the Hub is complete there, under LeRobot's tag, and converts; a failure loses nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from convert.run.command import main as convert
from pairstream.export.command import main
from stream.base.errors import EXIT_FAILED, EXIT_USAGE
from stream.base.extras import missing
from tests.fixtures.command import tree
from tests.fixtures.servers.hub_server import TOKEN, Hub, hub_server


@pytest.fixture
def fake_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_server() as hub:
        hub.use_here(monkeypatch, tmp_path / "home")
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub


def push(root: Path, output: Path, *options: str) -> int:
    return main([str(root), "--dataset", "demo", "--output", str(output), "--push", "me/slice", *options])


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.long
def test_a_pushed_slice_converts_as_the_local_one(
    fake_hub: Hub, holed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push(holed, tmp_path / "slice", "--episodes", "0,1") == 0
    printed = capsys.readouterr().out
    assert f"pushed: {fake_hub.address}/datasets/me/slice\n" in printed and 'LeRobotDataset("me/slice"' in printed
    repository = fake_hub.repositories["me/slice"]
    assert {**files(tmp_path / "slice"), ".gitattributes": b""} == repository.files()
    assert repository.files("v3.0") == repository.files() and repository.closed == ""
    shared = ["--layout", "frames", "--cameras", "all", "--image-size", "native", "--num-workers", "1"]
    assert convert(["--datasets", "lerobot:me/slice@v3.0", "--output", str(tmp_path / "hub"), *shared]) == 0
    (tmp_path / "me").mkdir()
    (tmp_path / "slice").rename(tmp_path / "me" / "slice")
    arguments = ["--datasets", "lerobot:me/slice", "--source", str(tmp_path), "--output", str(tmp_path / "local")]
    assert convert([*arguments, *shared]) == 0
    hub, local = ({k: v for k, v in tree(tmp_path / name).items() if "train" in k} for name in ("hub", "local"))
    assert hub and hub == local


def test_pushing_again_replaces_the_slice_and_its_tag(fake_hub: Hub, holed: Path, tmp_path: Path) -> None:
    assert push(holed, tmp_path / "one", "--episodes", "0,1", "--video", "--private", "--json") == 0
    repository = fake_hub.repositories["me/slice"]
    assert repository.closed == "private"
    first = repository.files()
    repository.commit({**first, "README.md": b"about it", "meta/episodes/chunk-000/file-001.parquet": b"of before"})
    assert push(holed, tmp_path / "two", "--episodes", "0") == 0
    kept = {".gitattributes": b"", "README.md": b"about it"}
    assert {**files(tmp_path / "two"), **kept} == repository.files() == repository.files("v3.0")
    assert first in list(repository.commits.values())


@pytest.mark.parametrize("why", ["no token", "no right", "no network"])
def test_a_hub_that_does_not_take_it_leaves_the_slice_here(
    why: str, fake_hub: Hub, holed: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    from huggingface_hub import constants

    monkeypatch, capsys = (request.getfixturevalue(name) for name in ("monkeypatch", "capsys"))
    fake_hub.takes = why != "no right"
    if why == "no token":
        monkeypatch.delenv("HF_TOKEN")
    elif why == "no network":
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert push(holed, tmp_path / "slice", "--episodes", "0") == EXIT_FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: hf://datasets/me/slice: cannot be written: ")
    assert ("run `hf auth login`" in line) == (why != "no network")
    assert f"the slice is complete in {tmp_path / 'slice'}; to push it again: hf upload me/slice " in line
    assert json.loads((tmp_path / "slice" / "meta" / "info.json").read_text())["total_episodes"] == 1
    assert "me/slice" not in fake_hub.repositories


@pytest.mark.parametrize("options", [["--push", "slice"], ["--push", "a/b/c"], ["--private"]], ids=" ".join)
def test_wrong_options_write_nothing(
    options: list[str], holed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(holed), "--dataset", "demo", "--output", str(tmp_path / "slice"), *options]) == EXIT_USAGE
    assert capsys.readouterr().err.startswith(f"error: {options[0]}")
    assert not (tmp_path / "slice").exists()


def test_without_the_library_nothing_is_written(
    holed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert push(holed, tmp_path / "slice") == EXIT_USAGE
    assert missing("huggingface_hub", "hub", by="pairstream export --push") in capsys.readouterr().err
    assert not (tmp_path / "slice").exists()
