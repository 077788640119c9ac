"""A LeRobot dataset on the Hub is what it is in a folder, and only what is needed of it comes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from convert.draft import main as draft
from convert.errors import EXIT_DAMAGED, EXIT_FAILED, EXIT_USAGE
from convert.run.command import main as convert
from convert.source.kinds import dataset_name, find_source
from stream.format.names import MANIFEST_NAME
from tests.fixtures.command import run, tree
from tests.fixtures.datasets.lerobot_dataset import DATA
from tests.fixtures.servers.hub_server import TOKEN, Hub, go_offline, hub_server

PLACE = "lerobot:demo/v3_av1"
WHOLE = ("--layout", "frames", "--cameras", "all")


@pytest.fixture
def server() -> Iterator[Hub]:
    with hub_server() as started:
        started.add("demo/v3_av1", DATA / "demo" / "v3_av1")
        yield started


@pytest.fixture
def hub(server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The Hub that this process finds."""
    server.use_here(monkeypatch, tmp_path / "home")
    return server


def converted(root: Path) -> dict[str, str]:
    """Hash of each file of a root, without the one place that names the source, and the checksum over it."""
    (path,) = root.rglob(MANIFEST_NAME)
    manifest = json.loads(path.read_text())
    del manifest["source"]["path"], manifest["checksum"]
    return {**tree(root), str(path.relative_to(root)): json.dumps(manifest)}


def folder_root(tmp_path: Path, *options: str) -> dict[str, str]:
    output = tmp_path / "folder"
    assert convert(["--datasets", PLACE, "--source", str(DATA), "--output", str(output), *options]) == 0
    return converted(output)


@pytest.mark.long
@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.long)])
def test_a_conversion_from_the_hub_is_that_of_the_folder(server: Hub, workers: str, tmp_path: Path) -> None:
    output = tmp_path / "hub"
    arguments = ["--datasets", PLACE, "--output", str(output), *WHOLE, "--num-workers", workers]
    done = run(*arguments, environment=server.environment(tmp_path / "home"))
    assert done.code == 0, done.err
    assert converted(output) == folder_root(tmp_path, *WHOLE, "--num-workers", "1")
    manifest = json.loads(next(output.rglob(MANIFEST_NAME)).read_text())
    assert manifest["source"]["path"] == f"hf://datasets/demo/v3_av1@{server.repositories['demo/v3_av1'].refs['main']}"


def test_only_files_of_the_chosen_episodes_and_cameras_come(hub: Hub, tmp_path: Path) -> None:
    arguments = ["--datasets", PLACE, "--output", str(tmp_path / "out"), "--layout", "frames", "--cameras", "front"]
    assert convert([*arguments, "--episodes", "train[:1]", "--num-workers", "1"]) == 0
    remaining = {name for name in hub.fetched() if not name.startswith("meta/")}
    assert remaining == {"data/chunk-000/file-000.parquet", "videos/observation.images.front/chunk-000/file-000.mp4"}
    assert len(hub.repositories["demo/v3_av1"].files()) > len(hub.fetched())


def test_looking_at_a_dataset_brings_its_metadata_alone(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert draft([PLACE]) == 0
    assert "source: lerobot:demo/v3_av1\n" in capsys.readouterr().out
    assert convert(["--datasets", PLACE, "--output", str(tmp_path / "out"), "--dry-run"]) == 0
    assert "hf://datasets/demo/v3_av1@" in capsys.readouterr().out
    assert hub.fetched() and all(name.startswith("meta/") for name in hub.fetched())
    assert not (tmp_path / "out").exists()


def test_a_revision_is_a_branch_a_tag_or_a_commit(hub: Hub) -> None:
    repository = hub.repositories["demo/v3_av1"]
    old = repository.refs["v3.0"] = repository.refs["main"]
    info = json.loads(repository.files()["meta/info.json"])
    changed = json.dumps({**info, "robot_type": "new"}).encode()
    new = repository.commit({**repository.files(), "meta/info.json": changed})
    request = {"": new, "@main": new, "@v3.0": old, f"@{old}": old}
    for revision, commit in request.items():
        result = find_source(f"{PLACE}{revision}", [], {})
        assert result.path == f"hf://datasets/demo/v3_av1@{commit}"
        assert result.entry["robot"] == ("new" if commit == new else "so101")
        assert dataset_name("lerobot", f"demo/v3_av1{revision}") == "demo_v3_av1"
    assert find_source(f"lerobot:hf://datasets/demo/v3_av1@{old}", ["/hub"], {}).entry["robot"] == "so101"


@pytest.mark.parametrize("closed", ["private", "gated"])
def test_a_closed_dataset_needs_a_token(
    hub: Hub, closed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.add("my/own", DATA / "demo" / "v3_av1", closed=closed)
    assert draft(["lerobot:my/own"]) == EXIT_USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: hf://datasets/my/own@main")
    assert "set HF_TOKEN or run `hf auth login`" in line and ("grant access" in line) == (closed == "gated")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert draft(["lerobot:my/own"]) == 0


@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("demo/nothing", "hf://datasets/demo/nothing@main: no such dataset on http://127.0.0.1:"),
        ("demo/v3_av1@v9", "hf://datasets/demo/v3_av1@v9: no such branch, tag or commit"),
        ("demo/v3--av1", "hf://datasets/demo/v3--av1@main: cannot be read: HFValidationError: "),
        ("demo/other", r"hf://datasets/demo/other@[0-9a-f]{40}: has no meta/info.json, so it is not a LeRobot data"),
    ],
)
def test_what_the_hub_does_not_have_is_one_sentence(
    hub: Hub, location: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "train.csv").write_text("1,2\n")
    hub.add("demo/other", tmp_path / "other")
    assert draft([f"lerobot:{location}"]) == EXIT_USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"error: {says}", line)


def test_offline_what_is_in_the_cache_converts_and_the_rest_is_no_damage(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ("--layout", "frames", "--cameras", "front", "--episodes", "train[:1]", "--num-workers", "1")
    arguments = ["--datasets", PLACE, "--output"]
    assert convert([*arguments, str(tmp_path / "first"), *few]) == 0
    go_offline(monkeypatch)
    before = len(hub.asked)
    assert convert([*arguments, str(tmp_path / "again"), *few]) == 0
    assert tree(tmp_path / "again") == tree(tmp_path / "first")
    capsys.readouterr()
    assert convert([*arguments, str(tmp_path / "all"), *WHOLE, "--num-workers", "1"]) == EXIT_USAGE
    assert "is not in " in (err := capsys.readouterr().err) and "HF_HUB_OFFLINE is set" in err
    assert not list((tmp_path / "all").rglob(MANIFEST_NAME)) and len(hub.asked) == before


@pytest.mark.long
def test_a_hub_that_fails_is_no_damage_and_the_command_goes_on_later(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--datasets", PLACE, "--output", str(tmp_path / "out"), *WHOLE, "--num-workers", "1"]
    repository = hub.repositories["demo/v3_av1"]
    hub.broken = f"/datasets/demo/v3_av1/resolve/{repository.refs['main']}/videos"
    assert convert(arguments) == EXIT_FAILED
    assert "videos/" in (err := capsys.readouterr().err) and "507" in err
    assert not list((tmp_path / "out").rglob(MANIFEST_NAME))
    hub.broken = "nothing"
    assert convert(arguments) == 0
    assert converted(tmp_path / "out") == folder_root(tmp_path, *WHOLE, "--num-workers", "1")


def test_a_file_that_the_dataset_lacks_is_damage(hub: Hub, tmp_path: Path) -> None:
    repository = hub.repositories["demo/v3_av1"]
    lost = "videos/observation.images.front/chunk-000/file-000.mp4"
    repository.commit({name: content for name, content in repository.files().items() if name != lost})
    assert any("files missing: 1 of" in remark for remark in find_source(PLACE, [], {}).remarks)
    arguments = ["--datasets", PLACE, "--output", str(tmp_path / "out"), "--layout", "frames", "--num-workers", "1"]
    assert convert(arguments) == EXIT_DAMAGED
    (listed,) = (tmp_path / "out").rglob("quarantine.jsonl")
    assert f"{lost}: missing" in listed.read_text()


def test_without_the_library_the_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "huggingface_hub.py").write_text("raise ModuleNotFoundError('none', name='huggingface_hub')\n")
    done = run(PLACE, module="pairstream draft", environment={"PYTHONPATH": f"{tmp_path}:{Path.cwd()}"})
    assert done.code == EXIT_USAGE
    assert "needs huggingface_hub, which is not installed; install pairstream[hub]" in done.error()
