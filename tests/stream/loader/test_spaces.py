"""Actions and states in canonical spaces, against the derived columns as pyarrow reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stream import Normalize, Select, Vector, load_normalize, make_loader
from stream.base.errors import ArgumentError, StateError
from stream.format.names import TableKind
from stream.format.spaces import EEF_NAMES
from tests.fixtures.datasets.oxe29_sample import NAMES
from tests.stream.index_root import read_table

# fractal's rotation is complete; language_table moves in a plane; bridge drops steps.
MAPPED = {"rt1": 1, "bridge": 1, "language_table": 1, "droid": 1}
NOT_MAPPED = {"vima_converted_externally_to_rlds", "spoc", "tidybot", "robo_set"}


def table_of(loader: Any, dataset: str, kind: TableKind) -> pa.Table:
    """Return a table of the split train."""
    return read_table(next(opened.folder for opened in loader.data.datasets if opened.name == dataset), kind)


def column(loader: Any, dataset: str, name: str) -> np.ndarray:
    """Return a column of steps, float32 [steps, dims]."""
    return np.array(table_of(loader, dataset, "steps")[name].to_pylist(), np.float32)


@pytest.mark.parametrize(
    ("spaces", "names"),
    [
        ({"action": "oxe", "state": "eef"}, ("action_oxe", "state_eef")),
        ({"action": "eef_delta", "state": None}, ("action_eef_delta", "state")),
    ],
)
def test_batches_have_the_derived_columns_and_mask_what_is_nan(
    frames_root: Path, spaces: Any, names: tuple[str, str]
) -> None:
    loader = make_loader(
        frames_root,
        MAPPED,
        batch_size=64,
        frames=(0,),
        action=Vector(4, start=-1, space=spaces["action"], on_unknown_units="keep"),
        state=Vector(2, start=-1, space=spaces["state"], on_unknown_units="keep"),
    )
    batch = loader.batch_at(0)
    seen_nan = False
    for row in range(64):
        dataset = loader.dataset_names[int(batch["dataset"][row])]
        starts = np.cumsum([0, *table_of(loader, dataset, "episodes")["num_steps"].to_pylist()])
        episode, t = int(batch["episode"][row]), int(batch["step"][row])
        for key, name, window in (("action", names[0], 4), ("state", names[1], 2)):
            values = column(loader, dataset, name)
            for k in range(window):
                step = starts[episode] + t - 1 + k
                got, mask = batch[key][row, k], batch[f"{key}_mask"][row, k]
                if not starts[episode] <= step < starts[episode + 1]:
                    assert not mask.any() and not got.any()
                    continue
                expected = values[step]
                seen_nan |= bool(np.isnan(expected).any())
                dims = len(expected)
                assert np.array_equal(mask[:dims], ~np.isnan(expected)) and not mask[dims:].any()
                assert np.array_equal(got[:dims], np.nan_to_num(expected)) and not got[dims:].any()
    assert seen_nan


def test_every_dataset_maps_or_is_named_with_its_reason(oxe_root: Path) -> None:
    with pytest.raises(ArgumentError) as error:
        make_loader(oxe_root, dict.fromkeys(NAMES, 1), batch_size=29, action=Vector(space="oxe"))
    message = str(error.value)
    assert message.startswith(f"{len(NOT_MAPPED)} of 29 datasets do not map")
    assert all(f"{name}: action=Vector(space='oxe'): " in message for name in NOT_MAPPED)
    assert "on_unmapped='mask'" in message and "pick-and-place" in message


def test_datasets_that_do_not_map_are_masked_or_left_out(oxe_root: Path) -> None:
    weights = dict.fromkeys(NAMES, 1)
    masked = make_loader(oxe_root, weights, batch_size=58, action=Vector(space="oxe", on_unmapped="mask"))
    assert masked.dataset_names == tuple(NAMES)
    batch = masked.batch_at(0)
    assert batch["action"].shape[2] == 7
    for row, number in enumerate(batch["dataset"]):
        if masked.dataset_names[number] in NOT_MAPPED:
            assert not batch["action_mask"][row].any() and not batch["action"][row].any()
    assert all(masked.action_names[name] == (() if name in NOT_MAPPED else EEF_NAMES) for name in NAMES)
    dropped = make_loader(oxe_root, weights, batch_size=25, action=Vector(space="oxe", on_unmapped="drop"))
    assert set(dropped.dataset_names) == set(NAMES) - NOT_MAPPED
    assert dropped.batch_at(0)["action_mask"].any()
    # robo_set has no action in oxe, and rt1 no joints.
    for names, state in (("tidybot", None), ("robo_set,rt1", Vector(space="joint", on_unmapped="drop"))):
        with pytest.raises(ArgumentError, match="leaves no dataset"):
            make_loader(oxe_root, names, batch_size=1, action=Vector(space="oxe", on_unmapped="drop"), state=state)


def test_unknown_units_are_refused_unless_kept(oxe_root: Path) -> None:
    weights = {"rt1": 1, "toto": 1, "berkeley_autolab_ur5": 1}
    with pytest.raises(ArgumentError, match="on_unknown_units='keep'") as error:
        make_loader(oxe_root, weights, batch_size=3, action=Vector(space="eef_delta"))
    assert "toto: x, y, z, roll, pitch, yaw" in str(error.value) and "rt1" not in str(error.value)
    kept = make_loader(oxe_root, weights, batch_size=3, action=Vector(space="eef_delta", on_unknown_units="keep"))
    assert kept.batch_at(0)["action_mask"].any()


def test_own_columns_need_no_mapping(oxe_root: Path) -> None:
    columns = {"spoc": [("action", [0, 1, 2])]}
    loader = make_loader(oxe_root, {"rt1": 1, "spoc": 1}, batch_size=8, action=Vector(space="oxe", columns=columns))
    assert len(loader.action_names["spoc"]) == 3 and loader.action_names["rt1"] == EEF_NAMES
    batch = loader.batch_at(0)
    spoc = batch["dataset"] == 1
    assert batch["action_mask"][spoc][:, 0, :3].all() and not batch["action_mask"][spoc][..., 3:].any()


def test_a_gripper_is_1_when_open(oxe_root: Path) -> None:
    """In fmb OpenVLA's transform leaves 1 for closed; eef_delta turns it."""
    weights = {"fmb": 1}
    oxe = make_loader(oxe_root, weights, batch_size=64, action=Vector(1, space="oxe")).batch_at(0)
    delta = make_loader(oxe_root, weights, batch_size=64, action=Vector(1, space="eef_delta")).batch_at(0)
    both_exist = oxe["action_mask"][:, 0, 6] & delta["action_mask"][:, 0, 6]
    assert both_exist.any()
    assert np.allclose(oxe["action"][both_exist, 0, 6], 1 - delta["action"][both_exist, 0, 6])


@pytest.mark.parametrize("per", ["dataset", "mixture"])
def test_statistics_are_those_of_the_space(oxe_root: Path, tmp_path: Path, per: Any) -> None:
    options: Any = {"batch_size": 16, "state": {"space": "eef", "on_unknown_units": "keep"}}
    action = Vector(2, space="oxe", on_unknown_units="keep")
    loader = make_loader(oxe_root, {"rt1": 1, "bridge": 1}, action=action, **options)
    transform = Normalize(loader, per=per, leave=())
    columns = {name: column(loader, name, "action_oxe") for name in loader.dataset_names}
    for name in loader.dataset_names:
        values = np.concatenate(list(columns.values())) if per == "mixture" else columns[name]
        statistics = transform.statistics["action"][name]
        np.testing.assert_allclose(statistics.mean, np.nanmean(values.astype(np.float64), axis=0), rtol=1e-6)
        np.testing.assert_allclose(statistics.std, np.nanstd(values.astype(np.float64), axis=0), rtol=1e-5)
        np.testing.assert_allclose(statistics.q99, np.nanquantile(values.astype(np.float64), 0.99, axis=0), rtol=1e-5)
    transform.save(tmp_path / "norm.json")
    other_space = make_loader(oxe_root, {"rt1": 1, "bridge": 1}, action=replace(action, space="eef_delta"), **options)
    with pytest.raises(ArgumentError, match="action_eef_delta"):
        load_normalize(tmp_path / "norm.json", other_space)
    assert load_normalize(tmp_path / "norm.json", loader).tables["action"].scale.tolist()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"action": {"space": "pose"}}, "expected one of None, .oxe., .eef_delta., .joint., .eef."),
        ({"state": {"space": "oxe"}}, "expected None or one of eef, joint"),
        ({"action": {"space": "oxe", "on_unmapped": "skip"}}, "expected one of 'error', 'mask', 'drop'"),
        ({"action": {"space": "oxe", "on_unknown_units": True}}, "expected one of 'error', 'keep'"),
        ({"action": {"space": "oxe", "reduce": "sum"}}, "take space='eef_delta'"),
    ],
)
def test_wrong_arguments_are_named(oxe_root: Path, options: Any, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        make_loader(oxe_root, {"rt1": 1}, batch_size=2, **options)


@pytest.mark.parametrize("num_actions", [1, 2])
def test_steps_that_a_space_drops_are_no_samples(frames_root: Path, num_actions: int) -> None:
    # The first is without an action at the end of an episode, the second at its begin.
    names = ["bridge", "ucsd_kitchen_dataset_converted_externally_to_rlds"]
    arguments: Any = {"batch_size": 16, "frames": (0,), "num_epochs": 1}
    action = Vector(num_actions, space="eef_delta", on_unknown_units="keep")
    select = Select(min_future_actions=num_actions)
    loader = make_loader(frames_root, names, action=action, select=select, **arguments)
    assert all(batch["action_mask"].any(axis=2).all() for batch in loader)
    overview = loader.describe()
    for name in names:
        assert overview[name]["left_out"] == {"actions": num_actions * overview[name]["episodes"]}
    action = Vector(num_actions, space="eef_delta")
    own_columns = replace(action, columns={"bridge": ["action/world_vector"]})
    kept = make_loader(frames_root, "bridge", action=own_columns, **arguments)
    assert kept.describe()["bridge"]["left_out"] == {}
    dropped = make_loader(frames_root, "bridge", action=action, **arguments)
    message = "steps at either end of an episode that min_future_actions and the space of the action leave"
    with pytest.raises(StateError, match=message):
        kept.step_of(dropped.state_at(0))
