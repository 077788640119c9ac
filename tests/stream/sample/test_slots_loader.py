"""Loaders whose vectors are in a layout: batches, normalisation, states, and the way back on a robot."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stream
from stream import ArgumentError, Normalize, Vector, load_loader, load_normalize, make_loader
from stream.adapters import gr00t, openpi

KEEP: dict[str, Any] = {"on_unknown_units": "keep"}
JOINT: dict[str, Any] = {"space": "joint", **KEEP}
EEF: dict[str, Any] = {"space": "eef", "rotation": "rot6d_columns", **KEEP}
ARGUMENTS: dict[str, Any] = {"batch_size": 16, "frames": None, "seed": 3}
RDT = [*range(30, 39), 10]
"""Numbers of a pose and a gripper in RDT's layout."""
SCRAMBLED = {
    "size": 12,
    "slots": {
        "grip": {"first": 11, "quantity": "gripper"},
        "arm": {"first": 2, "length": 8, "quantity": "joint_position"},
    },
}


def open_poses(root: Path, mixture: str = "droid,bridge", **options: Any) -> stream.Loader:
    """Open relative poses; ``slots`` is that of both vectors."""
    both = {**EEF, "slots": options.pop("slots", None), **options.pop("both", {})}
    action = Vector(4, relative_to="state", poses="body", **{**both, **options.pop("action", {})})
    return make_loader(root, mixture, action=action, state=Vector(**both), **{**ARGUMENTS, **options})


def spread(values: np.ndarray, positions: list[int], size: int) -> np.ndarray:
    result = np.zeros((*values.shape[:-1], size), values.dtype)
    result[..., positions] = values
    return result


@pytest.mark.parametrize("normalize", [None, "q01_q99", {"method": "openpi_pi05", "per": "mixture"}])
def test_a_named_layout_moves_numbers_and_masks_the_rest(frames_root: Path, normalize: Any) -> None:
    plain = open_poses(frames_root, normalize=normalize)
    loader = open_poses(frames_root, slots="rdt", normalize=normalize)
    for step in range(2):
        batch, expected = loader.batch_at(step), plain.batch_at(step)
        assert batch["action"].shape == (16, 4, 128) and batch["state"].shape == (16, 128)
        for key in ("action", "action_mask", "state", "state_mask"):
            assert batch[key].dtype == expected[key].dtype
            np.testing.assert_array_equal(batch[key], spread(expected[key], RDT, 128))
    names = loader.action_names["droid"]
    assert len(names) == 128 and names[10] == "gripper" and names[30:34] == ("x", "y", "z", "r00") and names[0] == ""


def test_padding_is_0_after_the_normalisation_with_mask_false(frames_root: Path) -> None:
    arguments: Any = {**ARGUMENTS, "normalize": {"method": "openpi_pi05", "leave": ()}}
    loader = make_loader(frames_root, "droid,robo_set", action=Vector(4, slots=32), state=Vector(slots=32), **arguments)
    plain = make_loader(frames_root, "droid,robo_set", action=4, **arguments)
    batch, expected = loader.batch_at(0), plain.batch_at(0)
    for key, size in (("action", expected["action"].shape[-1]), ("state", expected["state"].shape[-1])):
        np.testing.assert_array_equal(batch[key][..., :size], expected[key])
        assert batch[key].shape[-1] == 32
        assert not batch[key][..., size:].any() and not batch[f"{key}_mask"][..., size:].any()
    with pytest.raises(
        ArgumentError,
        match=r"state=Vector\(slots=14\) pads to 14 numbers, and these are wider.*\n  robo_set: 16 numbers",
    ):
        make_loader(frames_root, "droid,robo_set", action=4, state=Vector(slots=14), **ARGUMENTS)


def test_dimensions_without_a_slot_are_an_error_or_left_out(frames_root: Path) -> None:
    droid = {"mixture": "droid", "action": Vector(4, **JOINT), **ARGUMENTS}
    with pytest.raises(ArgumentError, match=r"droid: x, y, z, roll, .*absolute.: no slot has this quantity"):
        make_loader(frames_root, state=Vector(slots="pi"), **droid)
    for policy in ("mask", "drop"):
        loader = make_loader(frames_root, state=Vector(slots="pi", on_unmapped=policy), **droid)
        batch, plain = loader.batch_at(0), make_loader(frames_root, **droid).batch_at(0)
        # x, y, z, roll, pitch, yaw, gripper, and the joints
        np.testing.assert_array_equal(batch["state"], spread(plain["state"][:, [*range(7, 14), 6]], [*range(8)], 32))
        assert loader.state_names["droid"][7] == "observation/gripper_position[0]"
        normalize = Normalize(loader, method="mean_std", leave=(), keys=["state"])
        back = normalize.denormalize(normalize.map(batch)["state"][0], "state", dataset="droid")
        assert np.isnan(back[:6]).all()
        np.testing.assert_allclose(back[6:], plain["state"][0, 6:], atol=1e-5)


def test_statistics_move_with_the_layout_of_their_loader(frames_root: Path) -> None:
    plain = open_poses(frames_root, normalize="q01_q99")
    in_layout = open_poses(frames_root, slots="rdt", normalize=plain.normalize)
    again = open_poses(frames_root, normalize=in_layout.normalize)
    expected = plain.batch_at(0)["action"]
    np.testing.assert_array_equal(in_layout.batch_at(0)["action"], spread(expected, RDT, 128))
    np.testing.assert_array_equal(again.batch_at(0)["action"], expected)


def test_a_dimension_that_is_left_out_changes_no_other(frames_root: Path) -> None:
    """The last number of the layout belongs to z, which precedes dimensions without a slot."""
    slots = {"size": 6, "slots": {"position": {"first": 3, "quantity": "ee_position", "names": ["x", "y", "z"]}}}
    options: Any = {"action": None, "normalize": {"method": "mean_std", "leave": ()}, **ARGUMENTS}
    plain = make_loader(frames_root, "droid", **options).batch_at(0)
    batch = make_loader(frames_root, "droid", state=Vector(slots=slots, on_unmapped="drop"), **options).batch_at(0)
    np.testing.assert_array_equal(batch["state"], spread(plain["state"][:, :3], [3, 4, 5], 6))


def test_a_dataset_without_the_vector_is_masked(frames_root: Path) -> None:
    # kuka has no joints.
    names, joint = "kuka,droid", Vector(slots="pi", on_unmapped="mask", **JOINT)
    loader = make_loader(frames_root, names, action=Vector(2, **EEF), state=joint, normalize="mean_std", **ARGUMENTS)
    batch = loader.batch_at(0)
    is_kuka = batch["dataset"] == 0
    assert is_kuka.any() and not batch["state_mask"][is_kuka].any() and not batch["state"][is_kuka].any()
    assert batch["state_mask"][~is_kuka][:, :8].all() and loader.state_names["kuka"] == ("",) * 32


@pytest.mark.parametrize("slots", ["rdt", "being_h", "gr00t", 32])
@pytest.mark.parametrize("per_step", [False, True])
def test_a_robot_gets_the_dimensions_of_its_dataset_back(
    frames_root: Path, tmp_path: Path, slots: Any, per_step: bool
) -> None:
    rotation = {"rotation": "rotvec" if slots == "being_h" else "rot6d_columns"}
    settings = {"method": "mean_std", "leave": (), "per": "mixture"}
    loader = open_poses(frames_root, slots=slots, both=rotation, action={"per_step": per_step}, normalize=settings)
    state = Vector(**{**EEF, **rotation})
    raw = make_loader(frames_root, "droid,bridge", action=Vector(4, space="eef", **KEEP), state=state, **ARGUMENTS)
    commands = raw.batch_at(0)
    stored = make_loader(
        frames_root, "droid,bridge", action=1, state=Vector(space="eef", **KEEP), **ARGUMENTS
    ).batch_at(0)
    batch = loader.batch_at(0)
    assert loader.normalize is not None
    loader.normalize.save(tmp_path / "normalize.json")
    for normalize in (loader.normalize, load_normalize(tmp_path / "normalize.json")):
        for row in np.flatnonzero(commands["action_mask"].all(axis=(1, 2))).tolist():
            name = loader.dataset_names[batch["dataset"][row]]
            back = normalize.denormalize(batch["action"][row], dataset=name, state=stored["state"][row])
            np.testing.assert_allclose(back, commands["action"][row], atol=2e-5)
            state_in = normalize.normalize(commands["state"][row], "state", dataset=name)
            np.testing.assert_allclose(state_in, batch["state"][row], atol=1e-6)
        with pytest.raises(
            ArgumentError, match=rf"values: shape \(4, 7\); expected \[..., {len(batch['action'][0, 0])}\]"
        ):
            normalize.denormalize(batch["action"][0][:, :7], dataset="droid", state=stored["state"][0])
        with pytest.raises(ArgumentError, match="the action is in a layout, and datasets have other dimensions"):
            normalize.denormalize(batch["action"], dataset=batch["dataset"])


def test_tensors_go_through_a_layout_too(frames_root: Path) -> None:
    torch = pytest.importorskip("torch")
    options: Any = {
        "action": Vector(4, slots=SCRAMBLED, **JOINT),
        "state": None,
        "normalize": {"leave": ()},
        **ARGUMENTS,
    }
    loader = make_loader(frames_root, "droid", **options)
    values = loader.batch_at(0)["action"]
    assert loader.normalize is not None
    expected = loader.normalize.denormalize(values, dataset="droid")
    actual = loader.normalize.denormalize(torch.from_numpy(values), dataset=0)
    np.testing.assert_allclose(actual.numpy(), expected, atol=1e-5)
    again = loader.normalize.normalize(actual, "action", dataset="droid").numpy()
    mask = loader.batch_at(0)["action_mask"]
    np.testing.assert_allclose(again[mask], values[mask], atol=1e-5)
    assert not again[..., [0, 1, 10]].any()


@pytest.mark.parametrize(
    "vector", [{"reduce": "mean"}, {"reduce": "first"}, {"between": "frames", "steps": None}, {"start": -2}], ids=str
)
def test_reduced_windows_and_intervals_go_into_slots(frames_root: Path, vector: dict[str, Any]) -> None:
    fields = {"steps": 4, **JOINT, **vector}
    arguments = {**ARGUMENTS, "frames": [0, 2, 3], "batch_size": 8}
    plain = make_loader(frames_root, "droid", action=Vector(**fields), **arguments).batch_at(0)
    batch = make_loader(frames_root, "droid", action=Vector(**fields, slots=SCRAMBLED), **arguments).batch_at(0)
    for key in ("action", "action_mask"):
        np.testing.assert_array_equal(batch[key], spread(plain[key], [*range(2, 9), 11], 12))


def test_columns_of_a_caller_go_to_slots_by_their_description(frames_root: Path) -> None:
    parts = [
        {"path": "observation/joint_position", "quantity": "joint_position", "names": [f"left_{n}" for n in range(7)]},
        {"path": "observation/gripper_position", "quantity": "gripper", "names": ["left_gripper"]},
    ]
    state = Vector(columns=parts, slots="rdt")
    loader = make_loader(frames_root, "droid", action=1, state=state, **ARGUMENTS)
    plain = make_loader(frames_root, "droid", action=1, state=replace(state, slots=None), **ARGUMENTS).batch_at(0)
    np.testing.assert_array_equal(loader.batch_at(0)["state"], spread(plain["state"], [*range(50, 57), 60], 128))


def test_workers_ranks_and_a_saved_loader_give_the_same_batches(frames_root: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps(SCRAMBLED))
    options: Any = {"state": Vector(**JOINT, slots=64), "normalize": "min_max", **ARGUMENTS}
    loader = make_loader(frames_root, "droid,robo_set", action=Vector(4, slots=str(path), **JOINT), **options)
    loader.save(tmp_path / "loader.json")
    path.unlink()
    saved = load_loader(tmp_path / "loader.json")
    ranks = [loader.with_ranks(rank, 2) for rank in (0, 1)]
    with_workers = load_loader(tmp_path / "loader.json", num_workers=2)
    batches = iter(with_workers)
    for step in range(2):
        batch, from_workers = loader.batch_at(step), next(batches)
        assert stream.digest(saved.batch_at(step)) == stream.digest(batch) == stream.digest(from_workers)
        parts = [rank.batch_at(step)["action"] for rank in ranks]
        np.testing.assert_array_equal(np.concatenate(parts), batch["action"])
    assert saved.content == loader.content


def test_a_state_of_another_layout_is_reported(frames_root: Path, caplog: pytest.LogCaptureFixture) -> None:
    def open_loader(slots: Any) -> stream.Loader:
        return make_loader(frames_root, "droid", action=Vector(2, slots=slots, **JOINT), state=None, **ARGUMENTS)

    plain, padded, wider = map(open_loader, (None, 10, 12))
    assert not any("slots" in f"{item}" for item in plain.content.items())
    with caplog.at_level(logging.WARNING, logger="stream"):
        for other, loader, says in (
            (plain, padded, "action: 'Vector(slots=10, ...)' was 'Vector(...)'"),
            (padded, plain, "action: 'Vector(...)' was 'Vector(slots=10, ...)'"),
            (padded, wider, "action: 'Vector(slots=12, ...)' was 'Vector(slots=10, ...)'"),
        ):
            caplog.clear()
            assert loader.step_of(other.state_at(3)) == 3
            assert says in caplog.text


class Doubles:
    """A transform of raw actions in their layout."""

    def map(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "action": batch["action"] * 2}


def test_statistics_after_transforms_are_those_of_the_numbers_in_the_layout(frames_root: Path) -> None:
    options: Any = {
        "action": Vector(4, slots=SCRAMBLED, **JOINT),
        "state": None,
        "transforms": [Doubles()],
        **ARGUMENTS,
    }
    settings = {"leave": (), "over": "samples"}
    plain = make_loader(frames_root, "droid", normalize={**settings}, **{**options, "transforms": []})
    doubled = make_loader(frames_root, "droid", normalize={**settings, "statistics": "transformed"}, **options)
    first, second = (loader.normalize.statistics["action"]["droid"] for loader in (plain, doubled) if loader.normalize)
    assert first.names == second.names == (*(f"joint_{number}" for number in range(1, 8)), "gripper")
    assert second.max[:7] == pytest.approx(2 * first.max[:7], rel=0.5)
    values, mask = (np.concatenate([doubled.batch_at(n)[key] for n in range(30)]) for key in ("action", "action_mask"))
    for position in (*range(2, 9), 11):
        numbers = values[..., position][mask[..., position]]
        assert abs(numbers.mean()) < 0.3 and numbers.std() == pytest.approx(1, abs=0.2)


def test_openpi_takes_a_layout_and_trainers_with_their_own_refuse_it(frames_root: Path) -> None:
    sample = openpi.sample("pi0", action_horizon=4)
    joint: dict[str, Any] = {"space": "joint", "slots": "pi"}
    chosen = replace(sample, action=replace(sample.action, **joint), state=replace(sample.state, **joint))
    batch = make_loader(frames_root, "droid", batch_size=4, **chosen).batch_at(0)
    plain = replace(sample, action=replace(sample.action, space="joint"), state=replace(sample.state, space="joint"))
    expected = make_loader(frames_root, "droid", batch_size=4, **plain).batch_at(0)
    np.testing.assert_array_equal(batch["actions"], expected["actions"])
    assert batch["state"].shape == (4, 32)
    wide = replace(chosen, action=replace(chosen.action, slots="rdt"))
    with pytest.raises(ArgumentError, match="action of droid has 128 dimensions, the model takes 32"):
        make_loader(frames_root, "droid", batch_size=4, **wide)
    sample = gr00t.sample(action_horizon=4)
    with pytest.raises(ArgumentError, match=r"action=Vector\(slots=132\): this trainer's code lays its vectors out"):
        chosen = replace(sample, action=replace(sample.action, slots=132))
        make_loader(frames_root, "droid", batch_size=4, **chosen)
