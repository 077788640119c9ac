"""The objects of ``make_loader``: short forms, reprs, YAML, members of a mixture, and wrong calls."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import stream
from stream import ArgumentError, Frames, Select, Vector, Workers, digest, make_loader
from stream.loader.sample_spec import SampleSpec

OBJECTS: list[Any] = [
    Frames(),
    Frames((-1, 0, "goal"), cameras=("primary", "wrist"), size=(24, 32), fit="pad", edges="repeat"),
    Frames(range(3), cameras={"view": ("left", "right")}, size={"view": (8, 8)}, decode="device"),
    Frames.clip(4, rate=2.5, start=-0.4, edges="repeat"),
    Vector(),
    Vector(np.int64(16), start="-0.2 s", space="oxe", on_unmapped="mask", on_unknown_units="keep"),  # type: ignore[arg-type]
    Vector(columns={"bridge": [("state", range(3)), "reward"]}),
    Vector(columns=["reward"], reduce="mean"),
    Vector(between="frames"),
    Select(),
    Select(where=[("success", "==", np.True_)], episodes={"leave_out": ["a"]}, min_future_actions=8),
    Select(where={"bridge": [("step", "in", {3, 1})]}, keep_ranges={"*": [(0, 5)]}, on_missing_column="keep"),
    Workers(4, threads=2, prefetch=3),
    SampleSpec(seed=3, frames=Frames([0]), action=None, select=Select(min_future_actions=2), columns=["reward"]),
]


@pytest.mark.parametrize("value", OBJECTS, ids=repr)
def test_an_object_is_its_repr_its_yaml_and_its_json(value: Any) -> None:
    names = {"Frames": Frames, "Vector": Vector, "Select": Select, "Workers": Workers, "SampleSpec": SampleSpec}
    assert eval(repr(value), names) == value
    for text in (yaml.safe_dump(value.to_json()), json.dumps(value.to_json())):
        assert type(value).of("argument", yaml.safe_load(text)) == value
    assert replace(value) == value


def test_short_forms_and_mappings_are_the_objects(frames_root: Path) -> None:
    objects = {"frames": Frames([-1, 0]), "action": Vector(4), "state": Vector(2, start=-1), "num_workers": Workers(0)}
    short = {"frames": [-1, 0], "action": 4, "state": {"steps": 2, "start": -1}, "num_workers": 0}
    loaders = [make_loader(frames_root, "bridge", batch_size=4, **arguments) for arguments in (objects, short)]
    assert loaders[0].spec == loaders[1].spec and loaders[0].fingerprint == loaders[1].fingerprint
    assert digest(loaders[0].batch_at(3)) == digest(loaders[1].batch_at(3))
    seconds = make_loader(frames_root, "bridge", batch_size=4, action="1s")
    assert seconds.spec.action == Vector("1s") and seconds.batch_at(0)["action"].shape[1] == 5


def test_what_is_none_is_not_in_the_batch(frames_root: Path) -> None:
    everything = make_loader(frames_root, "bridge", batch_size=4).batch_at(1)
    nothing = make_loader(frames_root, "bridge", batch_size=4, action=None, state=None, language=None).batch_at(1)
    assert everything.keys() - nothing.keys() == {"action", "action_mask", "state", "state_mask", "language"}
    for key, values in nothing.items():
        np.testing.assert_array_equal(values, everything[key])


def test_make_loader_has_few_arguments_and_short_help() -> None:
    assert len(inspect.signature(make_loader).parameters) == 23
    for described in (make_loader, Frames, Vector, Select, Workers):
        assert len((inspect.getdoc(described) or "").splitlines()) < 80


def test_a_saved_loader_has_the_objects(frames_root: Path, tmp_path: Path) -> None:
    mixture = {
        "bridge": {"weight": 1, "select": Select(where=[("step", ">", 2)]), "frames": [0], "action": 3},
        "kuka": {"weight": 1, "action": {"columns": ["reward"]}},
    }
    loader = make_loader(
        frames_root, mixture, batch_size=4, frames=Frames([0], edges="repeat"), action=2, columns=["reward"]
    )
    loader.save(tmp_path / "loader.json")
    again = stream.load_loader(tmp_path / "loader.json")
    assert again.spec == loader.spec and digest(again.batch_at(5)) == digest(loader.batch_at(5))
    assert json.loads((tmp_path / "loader.json").read_text())["sample"]["action"] == {"steps": 2}


def test_a_member_has_its_own_select_frames_and_vectors(frames_root: Path) -> None:
    own = {"select": {"where": [["step", ">", 3]], "min_future_actions": 2}, "frames": [0, 1], "action": {"steps": 3}}
    together: Any = {"batch_size": 8, "shuffle": "none", "select": Select(where=[("step", "<", 6)])}
    mixed = make_loader(frames_root, {"bridge": own, "kuka": 1}, frames=[0], action=2, **together)
    batch = mixed.batch_at(0)
    is_bridge = batch["dataset"] == 0
    assert 0 < is_bridge.sum() < 8 and set(batch["step"][is_bridge]) <= {4, 5}
    assert batch["frames_mask"].tolist() == [[True, bridge] for bridge in is_bridge.tolist()]
    assert batch["action_mask"].any(axis=2).sum(axis=1)[~is_bridge].max() == 2
    alone = make_loader(
        frames_root,
        "bridge",
        batch_size=8,
        shuffle="none",
        frames=[0, 1],
        action=3,
        select=Select(where=[("step", ">", 3), ("step", "<", 6)], min_future_actions=2),
    )
    assert alone.sizes["bridge"] == mixed.sizes["bridge"]


def test_a_member_may_name_the_default_of_a_field_that_the_call_chose(frames_root: Path, tmp_path: Path) -> None:
    mixture = {"bridge": {"action": {"start": 0}}, "kuka": 1}
    loader = make_loader(frames_root, mixture, batch_size=4, action=Vector(2, start=-1))
    assert loader.data.spec.action_span.firsts == (0, -1)
    loader.save(tmp_path / "loader.json")
    assert stream.load_loader(tmp_path / "loader.json").data.spec.action_span.firsts == (0, -1)


def test_a_choice_without_names_is_of_every_dataset(frames_root: Path) -> None:
    for select in (Select(episodes=["*"]), Select(keep_ranges={"*": [[0, 4]]}), Select(where=[("step", "<", 4)])):
        both = make_loader(frames_root, "bridge,kuka", batch_size=4, select=select)
        chosen = {name: value for name, value in select.chosen().items() if name != "where"}
        by_name: Any = {name: {"bridge": value, "kuka": value} for name, value in chosen.items()}
        named = make_loader(frames_root, "bridge,kuka", batch_size=4, select=Select(**by_name) if by_name else select)
        assert both.sizes == named.sizes and all(both.sizes.values())


CALLS: list[tuple[dict[str, Any], str]] = [
    *[
        ({name: 3}, f"unknown argument '{name}'; write ")
        for name in (
            *("horizon", "action_from", "state_from", "state_horizon", "action_space", "state_space", "action_columns"),
            *("state_columns", "unmapped", "unknown_units", "cameras", "image_size", "image_fit", "image_filter"),
            *("bounds", "decode", "metadata", "filters", "missing", "episodes", "keep_ranges", "min_actions", "passes"),
            *("threads", "prefetch", "chunk_size", "action_horizon", "weights", "dataset", "epochs", "device"),
        )
    ],
    ({"frame": [0]}, "unknown argument 'frame'; did you mean 'frames'?"),
    ({"actions": 3}, "unknown argument 'actions'; did you mean 'action'?"),
    ({"batchsize": 3}, "did you mean 'batch_size'?"),
    ({"frames": 3}, "frames: frames=3; expected a list of"),
    ({"frames": {"stes": [0]}}, "frames: stream.Frames: unknown argument 'stes'; did you mean 'steps' or 'times'?"),
    ({"frames": {"size": 224}}, "frames: size=224; expected (height, width) in pixels"),
    ({"frames": {"edges": "clamp"}}, "frames: edges='clamp'; expected one of 'drop', 'repeat'"),
    ({"frames": {"fit": None}}, "frames: fit=None; expected one of 'stretch', 'pad'"),
    ({"frames": {"times": 1}}, "frames: times=1; expected True or False"),
    ({"frames": Vector(3)}, "frames=Vector(3); expected stream.Frames(...)"),
    ({"action": Frames([0])}, "action=Frames([0]); expected stream.Vector(...)"),
    ({"action": -1}, "action: steps=-1; expected a whole number >= 1"),
    ({"action": "sum"}, "action: steps='sum'; expected steps, or seconds above 0 such as '0.6s'"),
    ({"action": {"space": "xyz"}}, "action: space='xyz'; expected one of None, 'oxe', 'eef_delta', 'joint', 'eef'"),
    ({"action": {"reduce": "window"}}, "action: reduce='window'; expected one of None, 'sum', 'mean', 'first'"),
    ({"action": {"reduce": "sum", "space": "oxe"}}, "reduce='sum' with space='oxe'"),
    ({"action": {"reduce": "mean", "start": 1}}, "start=1 with reduce='mean'"),
    ({"action": {"between": "frames", "steps": 3}}, "between='frames' with steps"),
    ({"action": {"between": "frames"}, "frames": [0]}, "expected two or more at fixed, ascending steps"),
    ({"action": {"between": "frames"}, "frames": ["0..2"]}, "a range such as '0..15' draws one frame"),
    ({"action": {"between": "frames"}, "frames": [0, "goal"]}, "expected two or more at fixed, ascending steps"),
    ({"action": {"on_unknown_units": "refuse"}}, "on_unknown_units='refuse'; expected one of 'error', 'keep'"),
    ({"state": {"reduce": "mean"}}, "only the action has a reduction"),
    ({"state": {"between": "frames"}}, "only the action has intervals"),
    ({"state": {"space": "oxe"}}, "state=Vector(space='oxe'): expected None or one of eef, joint"),
    ({"select": [("step", ">", 3)]}, "expected stream.Select(...)"),
    ({"select": {"filters": []}}, "select: stream.Select: unknown argument 'filters'"),
    ({"select": {"where": [("step", "~", 3)]}}, "operators are =="),
    ({"select": {"min_future_actions": 0}}, "min_future_actions=0; expected a whole number >= 1"),
    ({"select": {"episodes": 3}}, "episodes=3; expected a list, a mapping of members, or a JSON file of one"),
    ({"select": {"on_missing_column": "skip"}}, "on_missing_column='skip'; expected one of 'error', 'keep', 'drop'"),
    ({"num_workers": {"threads": 0}}, "num_workers: threads=0; expected a whole number >= 1"),
    ({"num_workers": "many"}, "num_workers='many'; expected a whole number >= 0, or 'auto'"),
    ({"num_epochs": 0}, "num_epochs=0; expected a whole number >= 1"),
    ({"language": []}, "language=[]; expected a column of texts, a list of them to draw from, or None"),
]
"""Wrong calls, and a part of their message."""
MEMBERS: list[tuple[Any, str]] = [
    ({"filters": [("step", ">", 3)]}, "filters: write select: {where: ...}"),
    ({"select": {"were": []}}, "members.bridge: select: stream.Select: unknown argument 'were'; did you mean 'where'?"),
    ({"frames": {"size": (8, 8)}}, "frames.size: all members have the same; give size to make_loader"),
    ({"action": {"space": "oxe"}}, "action.space: all members have the same"),
    ({"action": {"columns": {"bridge": ["reward"]}}}, "expected a list of its columns"),
]


@pytest.mark.parametrize(("arguments", "message"), CALLS, ids=lambda value: str(value)[:60])
def test_a_wrong_call_is_one_sentence_that_shows_the_right_one(
    frames_root: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)) as raised:
        make_loader(frames_root, "bridge", **{"batch_size": 4, **arguments})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("entry", "message"), MEMBERS, ids=str)
def test_a_wrong_member_names_itself(frames_root: Path, entry: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        make_loader(frames_root, {"bridge": entry}, batch_size=4)


def test_a_member_that_does_not_fit_the_call_names_itself(frames_root: Path) -> None:
    message = "mixture: bridge: action: start=-1 with reduce='mean'"
    with pytest.raises(ArgumentError, match=re.escape(message)):
        make_loader(frames_root, {"bridge": {"action": {"start": -1}}}, batch_size=4, action=Vector(reduce="mean"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Frames([0], ["primary"]), "stream.Frames([0], ['primary']): expected names of arguments: steps, "),  # type: ignore[call-arg]
        (lambda: Frames(image_size=(8, 8)), "stream.Frames: unknown argument 'image_size'"),  # type: ignore[call-arg]
        (lambda: Vector(horizon=3), "stream.Vector: unknown argument 'horizon'"),  # type: ignore[call-arg]
        (lambda: Frames.clip(0, rate=5), "num_frames=0; expected a whole number >= 1"),
        (lambda: Frames.clip(4, rate=0), "rate=0; expected a number from 0.001 to 1e+06"),
    ],
)
def test_a_wrong_object_is_one_sentence(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        make()


@pytest.mark.parametrize("edges", ["drop", "repeat"])
@pytest.mark.parametrize("reduce", [None, "sum", "first"])
def test_a_clip_has_the_actions_of_each_interval(frames_root: Path, edges: Any, reduce: Any) -> None:
    """bridge has 5 steps a second, kuka 10: the intervals of 0.4 s are 2 and 4 steps."""
    clip = Frames.clip(3, rate=2.5, edges=edges)
    arguments: Any = {"batch_size": 32, "seed": 3, "frames": clip}
    intervals = Vector(between="frames", reduce=reduce)
    batch = make_loader(frames_root, "bridge,kuka", action=intervals, **arguments).batch_at(1)
    window = make_loader(frames_root, "bridge,kuka", action=8, **arguments).batch_at(1)
    size = window["action"].shape[-1]
    assert batch["action"].shape == ((32, 2, 4, size) if reduce is None else (32, 2, size))
    np.testing.assert_array_equal(batch["frame_step"], window["frame_step"])
    rates = np.array([5.0, 10.0])[batch["dataset"]][:, None]
    steps = batch["frame_step"] - batch["step"][:, None]
    np.testing.assert_allclose(batch["frame_time"], steps / rates, rtol=1e-6)
    counts = set()
    for row in range(32):
        for interval in range(2):
            first, stop = steps[row, interval], steps[row, interval + 1]
            counts.add(int(stop - first))
            actions, mask = window["action"][row, first:stop], window["action_mask"][row, first:stop]
            if reduce is None:
                np.testing.assert_array_equal(batch["action"][row, interval, : stop - first], actions)
                assert not batch["action_mask"][row, interval, stop - first :].any()
            elif stop == first:
                assert not batch["action_mask"][row, interval].any() and not batch["action"][row, interval].any()
            elif reduce == "first":
                np.testing.assert_array_equal(batch["action"][row, interval], np.where(mask[0], actions[0], 0))
    assert {2, 4} <= counts and (edges == "drop" or 0 in counts)
