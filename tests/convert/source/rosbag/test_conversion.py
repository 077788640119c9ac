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
    make_loader(tmp_path / "out", "own", batch_size=20, action=1, frames=[0]).save(tmp_path / "loader.json")
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


def test_a_glob_or_a_file_of_a_bag_is_the_bag_once(tmp_path: Path) -> None:
    write(tmp_path / "a", "sqlite3", recording("sqlite3", seconds=0.5))
    for glob in ("*/*.db3", "*", "a/*", "a/a.db3"):
        (((file,),),) = find(str(tmp_path / glob), [], LAYOUT).units.values()
        assert file.name == "a"


def test_bags_are_recognised_also_behind_links_and_below_folders(tmp_path: Path) -> None:
    paths = [write(tmp_path / "all" / form, form, recording(form, seconds=0.2)) for form in FORMS]
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "-linked é").symlink_to(tmp_path / "all")
    assert {recognise(str(path)) for path in (*paths, tmp_path / "all", tmp_path / "source")} == {"rosbag"}


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
    topics = {"observation/front": FRONT, "observation/depth": DEPTH, "action/command": COMMAND}
    topics |= {"state/joint_states": JOINTS, "language": TASK}
    features = {name: {"topic": topic} for name, topic in topics.items()}
    assert layout == {"rate": 10, "clock": FRONT, "stamps": "header", "features": features}
    source = find(str(path), [], layout)
    paths = [part["path"] for part in source.entry["action"] + source.entry["state"]]
    assert paths == ["action/command", "state/joint_states"]
    assert len(read_one(source).steps["stamp"]) == 20


def test_a_draft_and_a_dataset_of_no_bag_say_why(tmp_path: Path) -> None:
    path = write(tmp_path / "bag", "plain", recording("plain"))
    path.write_bytes(path.read_bytes()[:-100])
    for opening in (lambda: suggest_layout(f"rosbag:{path}", []), lambda: find(str(path), [], LAYOUT)):
        with pytest.raises(SourceError, match=r"no bag can be read; bag\.mcap: cannot be read .*mcap recover"):
            opening()
    write(tmp_path / "empty" / "a", "mcap", [])
    with pytest.raises(SourceError, match="no bag can be read; a: has no messages"):
        find(str(tmp_path / "empty"), [], LAYOUT)


@pytest.mark.parametrize("form", FORMS)
def test_a_first_bag_without_messages_is_one_listed_episode(tmp_path: Path, form: Form) -> None:
    write(tmp_path / "a", form, [])
    write(tmp_path / "b", form, recording(form, seconds=0.5))
    empty, episode = read_source(find(str(tmp_path), [], LAYOUT))
    assert isinstance(episode, ReadEpisode) and str(empty).startswith("a")


def test_joints_are_those_of_the_first_bag_that_has_their_messages(tmp_path: Path) -> None:
    types = Types("mcap")
    with Writer(tmp_path / "a", version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        messages = recording("mcap", seconds=0.2)
        kinds = {sent.topic: sent.kind for sent in messages}
        topics = {topic: writer.add_connection(topic, kind, typestore=types.store) for topic, kind in kinds.items()}
        for sent in messages:
            if sent.topic != JOINTS:
                content = types.store.serialize_cdr(sent.content, sent.kind)
                writer.write(topics[sent.topic], sent.received, content)
    write(tmp_path / "b", "mcap", recording("mcap", seconds=0.5))
    source = find(str(tmp_path), [], LAYOUT)
    assert source.entry["state"][0]["names"] == ["a", "b", "c"]
    assert fault(source) == f"a: state/joints: {JOINTS} has no message in the episode"
