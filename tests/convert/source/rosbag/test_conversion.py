"""Bags as files: their names, drafts of their layouts, bags without messages, and conversions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from rosbags.rosbag2 import StoragePlugin, Writer

from convert.errors import EXIT_DAMAGED, SourceError
from convert.run.command import main
from convert.source.kinds import recognise, suggest_layout
from convert.source.rosbag.dataset import find
from convert.verify.command import verify_root
from pairstream.replay.command import main as replay
from stream import make_loader
from tests.convert.source.rosbag.bags import (
    COMMAND,
    DEPTH,
    FORMS,
    FRONT,
    JOINTS,
    LAYOUT,
    TASK,
    Form,
    ReadEpisode,
    Types,
    fault,
    read_one,
    read_source,
    recording,
    write,
)
from tests.convert.source.rosbag.test_damage import without
from tests.fixtures.faults.other_user import errors_of_other_user, open_to_others

FORM_ENDINGS = {"ros1": ".bag", "plain": ".mcap", "mcap": "", "sqlite3": ""}


def convert(source: Path, out: Path) -> int:
    entry = {"source": f"rosbag:{source}", "layout": LAYOUT}
    config = out.with_suffix(".yaml")
    config.write_text(yaml.safe_dump({"datasets": {"own": entry}}))
    command = ["--datasets", str(config), "--output", str(out), "--num-workers", "1"]
    return main([*command, "--layout", "frames", "--image-size", "24x32"])


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_bags_of_any_name_are_converted_verified_and_replayed(
    tmp_path: Path, form: Form, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "all [bags]*"
    for name in ("my bag", "été [1]", "-dash"):
        write(folder / name, form, recording(form, seconds=0.5))
    elsewhere = write(tmp_path / "elsewhere" / "é x", form, recording(form, seconds=0.5))
    (folder / "linked").symlink_to(elsewhere.parent)
    assert convert(folder, tmp_path / "out") == 0
    assert verify_root(tmp_path / "out", jobs=1).ok
    make_loader(tmp_path / "out", "own", batch_size=20, horizon=1, frames=[0]).save(tmp_path / "loader.json")
    capsys.readouterr()
    assert replay(["--loader", str(tmp_path / "loader.json"), "--step", "0", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    expected = {f"{name}{FORM_ENDINGS[form]}" for name in ("my bag", "été [1]", "-dash", "linked/é x")}
    assert {row["source_file"] for row in rows["rows"]} == expected


@pytest.mark.parametrize("glob", ["runs/*", "runs/*.mcap", "run[12]/*", "**/b.mcap"])
def test_globs_find_bags_in_folders_of_any_name(tmp_path: Path, glob: str) -> None:
    folder = tmp_path / "day [1]"
    bag = write(tmp_path / "elsewhere" / "b", "plain", recording("plain", seconds=0.5))
    (folder / "run1").mkdir(parents=True)
    (folder / "runs").symlink_to(bag.parent)
    (folder / "run1" / "b.mcap").symlink_to(bag)
    source = find(str(folder / glob), [], LAYOUT)
    assert source.path == str(folder if glob.startswith(("run[", "**")) else folder / "runs")
    assert len(source.splits["train"]) == (2 if "**" in glob else 1)


def test_a_glob_of_the_files_of_a_bag_is_the_bag_once(tmp_path: Path) -> None:
    write(tmp_path / "a", "sqlite3", recording("sqlite3", seconds=0.5))
    for glob in ("*/*.db3", "*", "a/*"):
        source = find(str(tmp_path / glob), [], LAYOUT)
        assert [file.name for unit in source.units["train"] for file in unit] == ["a"]


def test_bags_behind_links_and_below_folders_are_recognised(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere" / "deep" / "b", "mcap", recording("mcap", seconds=0.2))
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "-linked é").symlink_to(tmp_path / "elsewhere")
    assert recognise(str(tmp_path / "source")) == "rosbag"


def test_the_first_source_folder_that_has_bags_is_taken(tmp_path: Path) -> None:
    (tmp_path / "[a]" / "bags").mkdir(parents=True)
    write(tmp_path / "b" / "bags" / "x", "plain", recording("plain", seconds=0.5))
    assert find("bags", [str(tmp_path / "[a]"), str(tmp_path / "b")], LAYOUT).path == str(tmp_path / "b" / "bags")
    with pytest.raises(SourceError, match=r"none: no such file or folder"):
        find("none", [str(tmp_path / "[a]")], LAYOUT)


@pytest.mark.parametrize("location", ["", "*/*.mcap", "*", "closed/b.mcap"])
def test_a_folder_of_bags_without_permission_is_an_error_that_names_it(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "bags"
    for name in ("a", "closed"):
        (folder / name).mkdir(parents=True)
        (folder / name / "b.mcap").write_bytes(b"x")
    open_to_others(tmp_path)
    (folder / "closed").chmod(0)
    imports = "from convert.source.rosbag.layout import find_bags"
    errors = errors_of_other_user(imports, f"find_bags({str(folder / location)!r}, [])")
    (folder / "closed").chmod(0o755)
    assert f"SourceError: {folder}/closed: cannot be read (Permission denied)" in errors


def test_a_link_to_nothing_is_one_listed_bag(tmp_path: Path) -> None:
    write(tmp_path / "bags" / "x", "plain", recording("plain", seconds=0.5))
    (tmp_path / "bags" / "lost.mcap").symlink_to(tmp_path / "none.mcap")
    assert convert(tmp_path / "bags", tmp_path / "out") == EXIT_DAMAGED
    (row,) = (tmp_path / "out/own/1.0.0/quarantine.jsonl").read_text().splitlines()
    assert json.loads(row)["source_file"] == "lost.mcap"


@pytest.mark.parametrize("form", FORMS)
def test_a_draft_names_cameras_rate_and_vectors_and_reads_the_bag(tmp_path: Path, form: Form) -> None:
    path = write(tmp_path / "bag", form, recording(form))
    layout = suggest_layout(f"rosbag:{path}", [])
    assert layout == {
        "rate": 10,
        "clock": FRONT,
        "stamps": "header",
        "features": {
            "observation/front": {"topic": FRONT},
            "observation/depth": {"topic": DEPTH},
            "action/command": {"topic": COMMAND},
            "state/joint_states": {"topic": JOINTS},
            "language": {"topic": TASK},
        },
    }
    source = find(str(path), [], layout)
    assert [part["path"] for part in source.entry["action"] + source.entry["state"]] == [
        "action/command",
        "state/joint_states",
    ]
    assert len(read_one(source).steps["stamp"]) == 20


def test_a_draft_of_no_bag_says_why(tmp_path: Path) -> None:
    path = write(tmp_path / "bag", "plain", recording("plain"))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(SourceError, match=r"no bag can be read; .*mcap recover"):
        suggest_layout(f"rosbag:{path}", [])


@pytest.mark.parametrize("form", FORMS)
def test_a_first_bag_without_messages_is_one_listed_episode(tmp_path: Path, form: Form) -> None:
    write(tmp_path / "a", form, [])
    write(tmp_path / "b", form, recording(form, seconds=0.5))
    source = find(str(tmp_path), [], LAYOUT)
    result = read_source(source)
    assert [isinstance(item, ReadEpisode) for item in result] == [False, True]
    assert fault(source).startswith("a")


def test_bags_without_any_message_are_one_error(tmp_path: Path) -> None:
    write(tmp_path / "a", "mcap", [])
    with pytest.raises(SourceError, match="no bag can be read; a: has no messages"):
        find(str(tmp_path), [], LAYOUT)


def test_joints_are_those_of_the_first_bag_that_has_their_messages(tmp_path: Path) -> None:
    types = Types("mcap")
    with Writer(tmp_path / "a", version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        writer.add_connection(JOINTS, "sensor_msgs/msg/JointState", typestore=types.store)
        for sent in recording("mcap", seconds=0.2):
            if sent.topic != JOINTS:
                expected_names = next((item for item in writer.connections if item.topic == sent.topic), None)
                topic = expected_names or writer.add_connection(sent.topic, sent.kind, typestore=types.store)
                writer.write(topic, sent.received, types.store.serialize_cdr(sent.content, sent.kind))
    write(tmp_path / "b", "mcap", recording("mcap", seconds=0.5))
    source = find(str(tmp_path), [], LAYOUT)
    assert source.entry["state"][0]["names"] == ["a", "b", "c"]
    assert fault(source) == f"a: state/joints: {JOINTS} has no message in the episode"


def _content(root: Path) -> dict[str, bytes]:
    files = [
        path for path in root.rglob("*") if path.is_file() and path.suffix in (".arrow", ".array_record", ".jsonl")
    ]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


@pytest.mark.long
def test_bags_convert_to_the_same_bytes_with_one_and_two_workers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, form in enumerate(FORMS):
        write(tmp_path / "bags" / form, form, recording(form, seed=seed))
    write(tmp_path / "bags" / "gap", "mcap", without(recording("mcap", seconds=3), FRONT, 0.75, 2.25))
    write(tmp_path / "bags" / "lost", "mcap", without(recording("mcap"), LAYOUT["features"]["action"]["topic"], 0.2, 1))
    (tmp_path / "bags" / "open.mcap").write_bytes(b"\x89MCAP0\r\n")
    config = tmp_path / "own.yaml"
    entry = {"source": f"rosbag:{tmp_path}/bags", "layout": LAYOUT}
    config.write_text(yaml.safe_dump({"datasets": {"own": entry}}))
    for workers in ("1", "2"):
        arguments = ["--datasets", str(config), "--output", str(tmp_path / workers), "--num-workers", workers]
        assert main([*arguments, "--layout", "frames", "--image-size", "24x32"]) == EXIT_DAMAGED, capsys.readouterr()
    single, two = _content(tmp_path / "1"), _content(tmp_path / "2")
    assert single and single.keys() == two.keys()
    assert all(single[name] == two[name] for name in single), [name for name in single if single[name] != two[name]]
    quarantine = b"".join(content for name, content in single.items() if name.endswith("quarantine.jsonl")).decode()
    assert "no picture for 0.600 s" in quarantine
    assert "has no message for" in quarantine
    assert "mcap recover open.mcap" in quarantine
