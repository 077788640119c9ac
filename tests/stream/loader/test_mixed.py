from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from stream import Frames, Loader, Select, digest, load_loader, make_loader, shared_episodes
from stream.base.errors import ArgumentError, StateError
from stream.format.manifest import encode_manifest, read_manifest
from tests.stream.index_root import open_data as mix


def test_workers_read_the_texts_of_a_dataset_that_is_a_member_twice(oxe_root: Path) -> None:
    mixture = {"one": {"dataset": "bridge"}, "two": {"dataset": "bridge"}, "rt1": 1, "kuka": 1}
    local, in_worker = (make_loader(oxe_root, mixture, batch_size=16, seed=3, num_workers=count) for count in (0, 1))
    for step, batch in zip(range(3), in_worker, strict=False):
        assert batch["language"] == local.batch_at(step)["language"]
        assert digest(batch) == digest(local.batch_at(step))


def test_several_missing_datasets_are_named_together(oxe_root: Path) -> None:
    with pytest.raises(ArgumentError, match="2 of 3 datasets of the mixture are missing: nowhere, nothing; convert"):
        mix(oxe_root, {"bridge": 1, "nowhere": 1, "nothing": 1})


def test_a_weight_too_small_to_be_drawn_is_refused_with_the_members(oxe_root: Path) -> None:
    with pytest.raises(ArgumentError, match=r"member 1 is less than 1 in 1,048,576.*members are bridge, kuka"):
        mix(oxe_root, {"bridge": 1, "kuka": 1e-8})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 1.5}, "seed=1.5; expected a whole number"),
        ({"seed": True}, "seed=True"),
        ({"samples_per_episode": -1}, "samples_per_episode=-1; expected a whole number >= 0"),
        ({"action": 0}, "action: steps=0; expected a whole number >= 1"),
        ({"action": 10**9}, "action: steps=1000000000; at most 100,000"),
        ({"action": {"reduce": "last"}}, "action: reduce='last'; expected one of None, 'sum', 'mean', 'first'"),
        ({"columns": "reward"}, "columns='reward'; expected a list"),
        ({"action": {"columns": 3}}, "action: columns=3; expected a list of columns, or a mapping of dataset names"),
        ({"state": {"columns": "reward"}}, "state: columns='reward'; expected a list of columns, or a mapping of"),
        ({"shuffle": "yes"}, "shuffle='yes'"),
        ({"select": {"where": [("nothing", "==", 1)]}}, "no column 'nothing'"),
        ({"select": {"where": {"rt1": [("step", "==", 1)]}}}, "where: no member 'rt1'"),
        ({"action": {"columns": {"brigde": ["reward"]}}}, "action=.*: no member 'brigde'; did you mean 'bridge'"),
    ],
)
def test_an_option_that_cannot_be_is_refused(oxe_root: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        mix(oxe_root, {"bridge": 1, "kuka": 1}, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state": {"columns": {"bridge": ["nothing"]}}}, "dataset bridge: state: no column 'nothing'"),
        ({"columns": ["nothing"]}, "columns: no dataset of the mixture has 'nothing'"),
        ({"columns": ["step"]}, r"columns: 'step' is a key of the batch already.*write episodes\.step, steps\.step"),
        ({"columns": ["language"]}, "columns: 'language' is a key of the batch already"),
    ],
)
def test_a_column_that_a_batch_cannot_hold_is_refused(oxe_root: Path, options: dict[str, Any], message: str) -> None:
    data = mix(oxe_root, {"bridge": 1, "kuka": 1}, **options)
    with pytest.raises(ArgumentError, match=message):
        _ = data.spec


def test_an_offset_that_the_mixture_was_not_written_for_is_said(
    oxe_root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("members: {bridge: {weight: 1, offset: 7}, kuka: {weight: 1, offset: 5}, rt1: {weight: 1}}")
    with caplog.at_level(logging.WARNING, logger="stream"):
        mix(oxe_root, path, split="train")
    (message,) = [record.getMessage() for record in caplog.records]
    assert "bridge 5 (the mixture says 7)" in message
    assert "kuka" not in message
    assert "rt1" not in message


def order_text(root: Path, mixture: Any = None, **options: Any) -> str:
    return json.dumps(mix(root, mixture or {"bridge": 1, "kuka": 2}, **options).fingerprint(), sort_keys=True)


def test_the_order_of_the_same_arguments_is_the_same(oxe_root: Path) -> None:
    assert order_text(oxe_root) == order_text(oxe_root, {"bridge": 10, "kuka": 20})
    assert order_text(oxe_root, {"kuka": 2, "bridge": 1}) != order_text(oxe_root)
    values = [{3, 1, 2}, (1, 2, 3), [1, 2, 3]]
    assert len({order_text(oxe_root, select=Select(where=[("step", "in", value)])) for value in values}) == 1


def rewritten(root: Path, change: Any, name: str = "bridge") -> None:
    """Change the manifest of a dataset below a root."""
    folder = next((root / name).iterdir())
    manifest = read_manifest(folder)
    (folder / "dataset.json").write_bytes(encode_manifest(change(manifest)))


@pytest.fixture
def copied(oxe_root: Path, tmp_path: Path) -> Path:
    shutil.copytree(oxe_root / "bridge", tmp_path / "bridge")
    return tmp_path


def test_a_corrected_description_ends_no_run(copied: Path, tmp_path: Path) -> None:
    loader = make_loader(copied, "bridge", batch_size=4)
    state, path = loader.state_at(7), tmp_path / "loader.json"
    loader.save(path)
    spec = read_manifest(next((copied / "bridge").iterdir())).spec
    rewritten(copied, lambda m: m.model_copy(update={"spec": {**spec, "description": "Another sentence."}}))
    assert make_loader(copied, "bridge", batch_size=4).step_of(state) == load_loader(path).step_of(state) == 7


def another_column(kind: Any, column: str) -> Any:
    """Return a change of a manifest to other content of a column."""

    def change(manifest: Any) -> Any:
        manifest.splits["train"].index[kind].columns[column] = "0" * 16
        return manifest

    return change


def test_another_column_ends_a_run_only_if_it_chooses_samples(copied: Path) -> None:
    select = Select(where=[("steps.language", "!=", "x")])
    plain, chosen = (mix(copied, "bridge", select=argument).fingerprint() for argument in (Select(), select))
    for column in ("language", "action"):
        rewritten(copied, another_column("steps", column))
    assert mix(copied, "bridge").fingerprint() == plain
    assert mix(copied, "bridge", select=select).fingerprint() != chosen


@pytest.mark.parametrize(
    ("kind", "column"), [("episodes", "episode_id"), ("records", "episode"), ("records", "step"), ("steps", "step")]
)
def test_other_episodes_and_steps_are_another_order(copied: Path, kind: Any, column: str) -> None:
    before = mix(copied, "bridge").fingerprint()
    rewritten(copied, another_column(kind, column))
    assert mix(copied, "bridge").fingerprint()["datasets"]["bridge"]["data"] != before["datasets"]["bridge"]["data"]


def test_frames_that_may_be_missing_are_bound_to_their_order(frames_root: Path, tmp_path: Path) -> None:
    shutil.copytree(frames_root / "viola", tmp_path / "viola")

    def step_of_another() -> int:
        first = make_loader(tmp_path, "viola", batch_size=4, frames=Frames((0, 2), cameras="primary"))
        second = make_loader(tmp_path, "viola", batch_size=4, frames=Frames((0, 1, 2), cameras=("primary", "wrist")))
        return second.step_of(first.state_at(3))

    assert step_of_another() == 3
    rewritten(tmp_path, lambda m: m.model_copy(update={"left_out": {"missing_camera": 1}}), "viola")
    with pytest.raises(StateError, match=r"frames that must exist, by frames=: .* was "):
        step_of_another()
    before = mix(tmp_path, "viola").fingerprint()["datasets"]["viola"]["data"]
    rewritten(tmp_path, another_column("records", "num_bytes"), "viola")
    after = mix(tmp_path, "viola").fingerprint()["datasets"]["viola"]["data"]
    assert [name for name in before if before[name] != after[name]] == ["holes"]


def test_choices_of_the_call_and_of_the_member_are_both_bound(oxe_root: Path) -> None:
    def bound(of_member: Any, common: Any) -> str:
        member = {"bridge": {"weight": 1, "select": {"where": of_member}}}
        return json.dumps(mix(oxe_root, member, select=Select(where=common)).fingerprint())

    first, second, third = ([("step", ">", number)] for number in (-1, -2, -3))
    assert bound(first, second) != bound(first, third)
    assert bound(first, second) != bound(third, second)
    assert bound([*first, *second], None) == bound([*second, *first], None)


def test_the_overview_has_the_episodes_and_what_each_condition_leaves_out(oxe_root: Path) -> None:
    data = mix(
        oxe_root, "bridge", split="train[:1]+train[2:]", select=Select(where=[("step", ">", 1), ("step", "<", 4)])
    )
    shown = data.overview()["bridge"]
    assert shown["ranges"] == {"train": [[0, 1], [2, 4]]}
    assert shown["episodes"] == shown["remaining_episodes"] == 3
    assert shown["left_out_by_condition"] == {"where: step > 1": 6, "where: step < 4": 3}
    assert shown["left_out"] == {"where": 9}
    names = data.sample_index.splits[0].episodes.arrow()["episode_id"].to_pylist()
    kept = mix(oxe_root, "bridge", select=Select(episodes={"bridge": names[:2]})).overview()["bridge"]
    assert (kept["episodes"], kept["remaining_episodes"]) == (4, 2)


def test_episodes_that_two_loaders_share_are_listed(oxe_root: Path) -> None:
    def loader(mixture: Any, split: str = "train", episodes: Any = None) -> Loader:
        return make_loader(oxe_root, mixture, batch_size=4, split=split, select=Select(episodes=episodes))

    train, val = loader("bridge,kuka", split="train[:75%]"), loader("bridge", split="train[75%:]")
    assert shared_episodes(train, val) == []
    (leak,) = shared_episodes(loader({"mine": {"dataset": "bridge", "weight": 1}}), val)
    assert (leak.dataset, leak.version, leak.split, leak.episode) == ("bridge", "0.1.0", "train", 3)
    assert leak.episode_id == val.describe(0)[0].episode_id
    without = {"bridge": {"leave_out": [leak.episode_id]}}
    assert shared_episodes(loader("bridge", episodes=without), val) == []
    members = {"a": {"dataset": "bridge", "split": "train[:1]"}, "b": {"dataset": "bridge", "split": "train[3:]"}}
    assert [ref.episode for ref in shared_episodes(loader(members), loader("bridge"))] == [0, 3]
    assert shared_episodes(loader("bridge"), loader("bridge", split="test")) == []
