# ruff: noqa: E501 (the tables of faults)
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from convert.errors import ConfigError
from convert.registry.registry import DatasetSpec, Registry, Selected, load_registry
from stream.format.mixture_file import SizePower

MINE = """\
datasets:
  mine:
    tfds_name: my_set
    version: 1.0.0
    description: A dataset.
    cameras:
      front: {path: observation/front/rgb, role: primary, storage: jpeg, shape: [64, 64, 3]}
      left: {path: observation/left, role: wrist, channels: bgr, storage: png, shape: [32, 32, 3]}
      right: {path: observation/right, role: wrist, storage: png, shape: [32, 32, 3]}
    instruction: {path: language_instruction, alternatives: [/episode_metadata/text]}
    action:
      - {path: action, dims: 3, select: [0, 1, 2], quantity: ee_position, kind: displacement, names: [x, y, z]}
      - {path: action, dims: 1, select: [3], quantity: gripper, kind: absolute, gripper: {open: 1, closed: 0}}
    state:
      - {path: observation/state, dims: 16, quantity: ee_pose_matrix, kind: absolute}
    control_frequency: 5
    splits: {train: 10, val: 2}
    leave_out: ["observation/depth_*", /maps/raw]
"""
MIXTURE = """\
description: Two of them.
members:
  bridge: {weight: 1}
  rt1: {weight: 0.5, offset: 0.6s, splits: {train: 'train[:80%]', test: 'train[80%:]'}}
"""


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_registry()


@pytest.fixture
def mine(tmp_path: Path) -> DatasetSpec:
    return load_registry(config=[write(tmp_path, MINE)]).dataset("mine")


def write(tmp_path: Path, text: str, *, name: str = "my.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def message(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_registry(config=[write(tmp_path, text)])
    return str(caught.value).removeprefix(f"{tmp_path}/")


def edited(old: str, new: str) -> str:
    assert MINE.count(old) >= 1
    return MINE.replace(old, new, 1)


def test_a_dataset_is_found_by_its_name_or_its_tfds_name(registry: Registry) -> None:
    assert registry.dataset("bridge").version == "0.1.0"
    assert registry.dataset("fractal20220817_data").name == "rt1"


def test_an_unknown_dataset_names_the_closest(registry: Registry) -> None:
    with pytest.raises(ConfigError, match=r"^unknown dataset 'brigde'; did you mean 'bridge'\?$"):
        registry.dataset("brigde")


def test_a_tfds_name_of_two_datasets_is_ambiguous(tmp_path: Path) -> None:
    entry = MINE.removeprefix("datasets:\n")
    two = "datasets:\n" + entry.replace("  mine:", "  one:") + entry.replace("  mine:", "  other:")
    with pytest.raises(ConfigError, match="my_set is the TFDS name of one, other; name one of these"):
        load_registry(config=[write(tmp_path, two)]).dataset("my_set")


def test_a_dataset_can_be_sent_to_another_process(registry: Registry) -> None:
    spec = registry.dataset("kuka")
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_a_user_adds_a_dataset(tmp_path: Path, registry: Registry) -> None:
    extended = load_registry(config=[write(tmp_path, MINE)])
    assert extended.datasets.keys() - registry.datasets.keys() == {"mine"}


def test_a_user_replaces_a_dataset_as_a_whole(tmp_path: Path) -> None:
    spec = load_registry(config=[write(tmp_path, MINE.replace("  mine:", "  bridge:"))]).dataset("bridge")
    assert (spec.tfds_name, spec.quirks) == ("my_set", ())


def test_a_later_file_wins(tmp_path: Path) -> None:
    first = write(tmp_path, MINE, name="first.yaml")
    second = write(tmp_path, edited("version: 1.0.0", "version: 2.0.0"), name="second.yaml")
    assert load_registry(config=[first, second]).dataset("mine").version == "2.0.0"


def test_an_empty_file_adds_nothing(tmp_path: Path, registry: Registry) -> None:
    assert load_registry(config=[write(tmp_path, "# nothing yet\n")]) == registry


@pytest.mark.parametrize("name", ["primary", "front", "observation/front/rgb", "steps/observation/front/rgb"])
def test_a_camera_is_found_by_role_name_or_path(mine: DatasetSpec, name: str) -> None:
    assert mine.camera(name) == mine.primary


def test_an_unknown_camera_lists_those_that_exist(mine: DatasetSpec) -> None:
    with pytest.raises(ConfigError) as caught:
        mine.camera("lef")
    assert str(caught.value) == ("mine has no camera 'lef'; it has front (primary), left (wrist), right (wrist)")


def test_a_role_of_two_cameras_is_ambiguous(mine: DatasetSpec) -> None:
    with pytest.raises(ConfigError, match="mine has 2 cameras with role wrist: left, right; name one"):
        mine.camera("wrist")


def test_leave_out_matches_features_of_steps_and_episodes(mine: DatasetSpec) -> None:
    paths = ["observation/depth_1", "observation/depth", "/maps/raw", "maps/raw"]
    assert [mine.leaves_out(path) for path in paths] == [True, False, True, False]


def test_a_space_that_is_like_another_has_its_terms_and_writes_what_differs(tmp_path: Path) -> None:
    spaces = """    spaces:
      oxe: {action: [{pad: 7}], drop_first: 1, drop_last: 1, unknown_units: [x], follows: openvla, note: theirs}
      eef_delta: {like: oxe, drop_last: 2, unknown_units: [y]}
    version"""
    actual = load_registry(config=[write(tmp_path, edited("    version", spaces))]).dataset("mine").spaces
    assert actual["eef_delta"].action == actual["oxe"].action
    assert (actual["eef_delta"].drop_first, actual["eef_delta"].drop_last) == (1, 2)
    space = actual["eef_delta"]
    assert (space.unknown_units, space.follows, space.note) == (("y",), None, None)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("role: primary", "rol: primary", "my.yaml: datasets.mine.cameras.front: unknown key 'rol'; did you mean 'role'?"),
        ("role: primary, ", "", "my.yaml: datasets.mine.cameras.front.role: Field required"),
        ("role: primary", "role: secondary", "my.yaml: datasets.mine: has 0 colour cameras with role primary"),
        ("role: wrist", "role: primary", "has 2 colour cameras with role primary"),
        ("channels: bgr", "channels: brg", "left.channels: Input should be 'rgb', 'bgr' or 'unknown', found 'brg'"),
        ("kind: displacement", "kind: delt", "my.yaml: datasets.mine.action.0.kind: Input should be 'displacement', 'velocity', 'target', 'absolute' or 'flag', found 'delt'"),
        ("control_frequency", "control_freqency", "unknown key 'control_freqency'; did you mean 'control_frequency'?"),
        ("control_frequency: 5", "control_frequency: five", "control_frequency: Input should be a valid number, found 'five'"),
        ("control_frequency: 5", "control_frequency: .nan", "control_frequency: Input should be "),
        ("control_frequency: 5", "control_frequency: true", "control_frequency: Input should be a valid number"),
        ("version: 1.0.0", "version: 1.0", "version: String should match pattern"),
        ("version: 1.0.0", "version: latest", "version: String should match pattern"),
        ("[64, 64, 3]", "[64, 64]", "datasets.mine.cameras.front.shape.2: Field required"),
        ("[64, 64, 3]", "[64, 64, -3]", "shape.2: Input should be greater than or equal to 0, found -3"),
        ("[0, 1, 2]", "[0, 1]", "action.0: select is [0, 1], expected 3 different values, as many as dims; dims is the count of the values of this part"),
        ("[0, 1, 2]", "[0, 1, 1]", "action.0: select is [0, 1, 1], expected 3 different values"),
        ("[x, y, z]", "[x, y]", "action.0: names is ['x', 'y'], expected 3 different values"),
        ("{open: 1, closed: 0}", "{open: 1, closed: 1}", "action.1.gripper: open and closed are both 1.0"),
        ("{open: 1, closed: 0}", "{opn: 1, closed: 0}", "unknown key 'opn'; did you mean 'open'?"),
        ("quantity: gripper", "quantity: joint_position", "has a gripper convention but quantity joint_position"),
        ("observation/left", "/observation/left", "expected one of the steps, no leading slash"),
        ("observation/left", "steps/observation/left", "paths are relative to `steps`, so leave `steps/` out"),
        ("left: {", "'le ft': {", "cameras.le ft.[key]: String should match pattern"),
        ("{train: 10, val: 2}", "{train: 10, train: 2}", "has the key 'train' twice"),
        ("{train: 10, val: 2}", "{train: -1}", "splits.train: Input should be greater than or equal to 0"),
        ("    version", "    offset: -1\n    version", "mine.offset: offset -1 is neither a number of steps (5) nor seconds (0.6s)"),
        ("    version", "    offset: 6ms\n    version", "offset '6ms' is neither a number of steps"),
        ("    control_frequency: 5", "    offset: 1s", "offset 1s is in seconds but there is no control_frequency"),
        ("    version", "    spaces: {oxe: {action: [{path: a}]}}\n    version", "oxe: action has 1 dimensions, expected x, y, z, "),
        ("    version", "    spaces: {oxe: {like: eef}}\n    version", "spaces: oxe: like is 'eef', expected a space that is written out"),
        ("    version", "    spaces: {oxe: {like: eef}, eef: {state: [{pad: 7}]}}\n    version", "oxe: is no space of the state"),
        ("    version", "    spaces: {oxe: {like: oxe}}\n    version", "oxe: like is 'oxe', expected a space that"),
        ("    version", "    spaces: {oxe: {}}\n    version", "spaces.oxe: expected terms of action or state, or the reason why"),
        ("    version", "    spaces: {joint: {action: [{}]}}\n    version", "joint.action.0: expected one of path, fill and pad"),
        ("    version", "    spaces: {joint: {action: [{path: a, then: [invrt]}]}}\n    version", "then.0.name: Input should be 'invert'"),
        ("    version", "    spaces: {joint: {action: [{path: a, then: [scale]}]}}\n    version", "scale has 0 values, expected 1"),
        ("    version", "    spaces: {joint: {action: [{path: a, then: [turned]}]}}\n    version", "turned takes 3 values, there are 1"),
        ("    version", "    spaces: {eef: {action: [{pad: 7}]}}\n    version", "eef: is no space of the action"),
        ("    version", "    spaces: {joint: {state: [{pad: 1}], unknown_units: [x]}}\n    version", "unknown_units names 'x', which is no"),
        ("    control_frequency: 5", "    spaces: {joint: {action: [{path: a, then: [per_step]}]}}", "joint: per_step needs a control_frequency"),
        ("quantity: gripper", "quantity: gripper, sources: {knd: x}", "source of 'knd'; expected one of kind, frame, unit, order, gripper"),
        ("  mine:", "  my set:", "datasets.my set.name: String should match pattern"),
        ("  mine:", "  oxe29:", "'oxe29' is the name of a dataset and of a mixture; rename one"),
        ("datasets:", "dataset:", "my.yaml: unknown key 'dataset'; did you mean 'datasets'?"),
    ],
)  # fmt: skip
def test_a_fault_in_a_dataset_is_named_with_its_place(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert expected in message(tmp_path, edited(old, new))


def test_several_faults_are_told_at_once(tmp_path: Path) -> None:
    text = MINE.replace("role: wrist", "rol: wrist")
    assert [line.split(": ")[1] for line in message(tmp_path, text).splitlines()] == [
        "datasets.mine.cameras.left",
        "datasets.mine.cameras.right",
    ]


@pytest.mark.parametrize("text", ["[1, 2]", "just text", "3", "datasets: [a]", "datasets: {mine: 3}", "mixtures: 1"])
def test_a_list_or_scalar_is_no_configuration(tmp_path: Path, text: str) -> None:
    assert re.search("Input should be a valid dict", message(tmp_path, text))


def test_a_mixture_can_use_datasets_of_its_own_file(tmp_path: Path) -> None:
    text = MINE + "mixtures: {both: {description: Two., members: {mine: {weight: size}, bridge: {weight: 1}}}}\n"
    registry = load_registry(config=[write(tmp_path, text)])
    assert [selected.spec.name for selected in registry.resolve("both")] == ["mine", "bridge"]


@pytest.mark.parametrize(
    ("weight", "parsed"),
    [
        ("2", 2.0),
        ("0", 0.0),
        ("size", "size"),
        ("{size_power: 0.5}", SizePower(size_power=0.5)),
        ("{size_power: 1, factor: 2.5}", SizePower(size_power=1, factor=2.5)),
    ],
)
def test_a_weight_is_a_number_or_by_size(tmp_path: Path, weight: str, parsed: object) -> None:
    text = MIXTURE.replace("weight: 1}", f"weight: {weight}}}")
    member = load_registry(config=[write(tmp_path, text, name="two.yaml")]).mixtures["two"].members["bridge"]
    assert member.weight == parsed


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("bridge:", "brigde:", "mixture my: members.brigde: unknown dataset 'brigde'; did you mean 'bridge'"),
        ("rt1:", "fractal20220817_data:", "members.fractal20220817_data: unknown dataset 'fractal20220817_data'; write rt1"),
        ("rt1:", "bridge:", "has the key 'bridge' twice"),
        ("weight: 1}", "weight: .nan}", "my.yaml: mixtures.my.members.bridge.weight: found '.nan'; expected a finite number >= 0"),
        ("weight: 1}", "weight: .inf}", "members.bridge.weight: found '.inf'"),
        ("weight: 1}", "weight: -1}", "members.bridge.weight: found -1"),
        ("weight: 1}", "weight: true}", "members.bridge.weight: found True"),
        ("weight: 1}", "weight: sise}", "members.bridge.weight: found 'sise'"),
        ("weight: 1}", "weight: {size_pow: 1}}", "{size_power: p, factor: f}"),
        ("weight: 1}", "wieght: 1}", "unknown key 'wieght'; did you mean 'weight'?"),
        ("offset: 0.6s", "offset: -5", "members.rt1.offset: offset -5 is neither"),
        ("train[:80%]", "train[:80", "members.rt1.splits.train: String should match pattern"),
        ("train[:80%]", "trian[:80%]", "mixture my: members.rt1: no split 'trian'; did you mean 'train'?"),
        ("members:", "member:", "unknown key 'description'"),
        ("description:", "descripton:", "unknown key 'descripton'; did you mean 'description'?"),
    ],
)  # fmt: skip
def test_a_fault_in_a_mixture_is_named_with_its_place(tmp_path: Path, old: str, new: str, expected: str) -> None:
    path = write(tmp_path, MIXTURE.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        load_registry().resolve(str(path))
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("members", "expected"),
    [("{}", "should have at least 1 item"), ("{bridge: {weight: 0}}", "no member has a weight above 0")],
)
def test_a_mixture_needs_a_member_with_a_weight(tmp_path: Path, members: str, expected: str) -> None:
    assert expected in message(tmp_path, f"{{description: None., members: {members}}}")


@pytest.mark.parametrize("split", ["train", "train[:90%]", "train[90%:]+val", "all", "train[-5:]", "train[1shard:]"])
def test_splits_are_written_as_in_tfds(tmp_path: Path, split: str) -> None:
    text = MINE + f"mixtures: {{m: {{description: M., members: {{mine: {{weight: 1, splits: {{x: '{split}'}}}}}}}}}}\n"
    member = load_registry(config=[write(tmp_path, text)]).mixtures["m"].members["mine"]
    assert member.splits == {"x": split}


def names(selected: list[Selected]) -> list[str]:
    return [item.spec.name for item in selected]


def test_resolve_takes_names_and_files(registry: Registry, tmp_path: Path) -> None:
    assert len(registry.resolve("oxe29")) == 29
    assert names(registry.resolve("bridge, fractal20220817_data")) == ["bridge", "rt1"]
    assert names(registry.resolve(str(write(tmp_path, MINE)))) == ["mine"]
    only_mixture = MINE + "mixtures: {one: {description: One., members: {bridge: {weight: 1}}}}\n"
    assert names(registry.resolve(str(write(tmp_path, only_mixture)))) == ["bridge"]


def test_resolve_takes_a_mixture_file(tmp_path: Path, registry: Registry) -> None:
    selected = registry.resolve(str(write(tmp_path, MIXTURE)))
    assert [(item.spec.name, item.member.weight, item.offset) for item in selected] == [
        ("bridge", 1.0, 5),
        ("rt1", 0.5, "0.6s"),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("oxe2", "unknown dataset or mixture 'oxe2'; did you mean 'oxe29'?"),
        ("brigde", "unknown dataset or mixture 'brigde'; did you mean 'bridge'"),
        ("bridge,kukka", "unknown dataset 'kukka'; did you mean 'kuka'?"),
        ("bridge,bridge", "dataset bridge is named 2 times; name it once"),
        ("rt1,fractal20220817_data", "dataset rt1 is named 2 times"),
        ("bridge,", "unknown dataset ''"),
        ("", "unknown dataset or mixture ''"),
        ("none.yaml", "none.yaml: cannot be read: No such file or directory"),
    ],
)
def test_what_cannot_be_resolved_is_named(registry: Registry, text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        registry.resolve(text)
    assert expected in str(caught.value)


def test_a_file_with_two_mixtures_cannot_be_resolved(tmp_path: Path, registry: Registry) -> None:
    first = "{description: One., members: {bridge: {weight: 1}}}"
    path = write(tmp_path, f"mixtures: {{a: {first}, b: {first}}}")
    with pytest.raises(ConfigError, match=r"has several mixtures \(a, b\); give it as --config"):
        registry.resolve(str(path))


def test_a_file_with_nothing_cannot_be_resolved(tmp_path: Path, registry: Registry) -> None:
    with pytest.raises(ConfigError, match="has neither datasets nor members of a mixture"):
        registry.resolve(str(write(tmp_path, "datasets:\n")))


def test_a_replaced_dataset_without_a_split_of_the_mixture_is_told(tmp_path: Path) -> None:
    text = MINE.replace("  mine:", "  bridge:").replace("{train: 10, val: 2}", "{demos: 10}")
    registry = load_registry(config=[write(tmp_path, text)])
    with pytest.raises(ConfigError, match=r"oxe29: members\.bridge: no split 'train'; splits there: demos"):
        registry.resolve("oxe29")


JOINTS: list[dict[str, Any]] = [{"path": "q", "select": [0, 1], "dims": 2, "quantity": "joint_position"}]
GRIPPER: list[dict[str, Any]] = [{"path": "q", "select": [2], "dims": 1, "quantity": "gripper"}]


def described(**more: Any) -> DatasetSpec:
    """An entry that a dataset makes of itself, with corrections of the user."""
    source: dict[str, Any] = {
        **{"version": "3.0.0", "description": "An arm.", "cameras": {"front": {"path": "f", "role": "primary"}}},
        "state": [{"path": "q", "dims": 3, "names": ["shoulder", "elbow", "gripper"]}],
    }
    content = {"datasets": {"mine": {"source": "lerobot:me/mine", **more}}}
    return Registry.model_validate(content).describe("mine", source)


def test_declared_parts_keep_the_names_that_the_dataset_gives() -> None:
    assert [part.names for part in described(state=JOINTS + GRIPPER).state] == [("shoulder", "elbow"), ("gripper",)]
    own = described(state=[{**JOINTS[0], "names": ["a", "b"]}, {"path": "other", "dims": 3}])
    assert [part.names for part in own.state] == [("a", "b"), None]
    with pytest.raises(ConfigError, match=r"select is \[0, 9\], expected 1 different values"):
        described(state=[{"path": "q", "select": [0, 9], "dims": 1}])


def test_a_gripper_does_not_become_a_joint() -> None:
    terms: dict[str, Any] = {"path": "q", "select": [0, 1, 2]}
    with pytest.raises(ConfigError, match=r"joint: state.0 has the gripper without its name.*names: \[gripper\]"):
        described(state=JOINTS + GRIPPER, spaces={"joint": {"state": [terms]}})
    named = [{"path": "q", "select": [0, 1]}, {"path": "q", "select": [2], "names": ["left_gripper"]}]
    spec = described(state=JOINTS + GRIPPER, spaces={"joint": {"state": named}})
    assert spec.vectors["state_joint"].names == ("joint_1", "joint_2", "left_gripper")  # type: ignore[union-attr]
