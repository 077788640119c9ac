"""The packaged datasets, compared with their feature trees and with published tables."""

import json
import re
from functools import cache
from pathlib import Path

import pytest
import tensorflow_datasets as tfds
import yaml

from convert.registry.dataset import SENTENCE_EMBEDDINGS, DatasetSpec, Part
from convert.registry.registry import load_registry
from convert.source.features import Feature
from convert.source.rlds.metadata import flatten_features
from stream.format.spaces import SpaceName
from tests.fixtures.datasets.spaces import mapped_vectors

CONFIGS = Path(__file__).resolve().parents[2] / "configs"

# primary camera, its size and storage, number of colour cameras, instruction, lengths of action and state, steps a
# second, steps an episode, episodes: from features.json, dataset_info.json and the tables named in datasets.yaml.
EXPECTED = """\
bc_z                         image                 171x213 jpeg       1 observation/natural_language_instruction  7  7  10 139.05 train=39350,val=3914
berkeley_autolab_ur5         image                 480x640 undeclared 2 observation/natural_language_instruction  8 15   5  97.97 train=896,test=104
berkeley_cable_routing       image                 128x128 undeclared 4 observation/natural_language_instruction  7  7  10   25.8 train=1482,test=165
berkeley_fanuc_manipulation  image                 224x224 png        2 language_instruction                      6 20  10 150.87 train=415
bridge                       image                 480x640 undeclared 1 observation/natural_language_instruction  8  7   5  33.95 train=25460,test=3475
bridge_dataset               image_0               256x256 jpeg       4 language_instruction                      7  7   5  37.55 train=53192,val=6872
columbia_cairlab_pusht_real  image                 240x320 undeclared 2 observation/natural_language_instruction  8  2  10  204.3 train=122,test=14
droid                        exterior_image_1_left 180x320 jpeg       3 language_instruction                      7 14  15      - train=95658
fmb                          image_side_1          256x256 jpeg       4 language_instruction                      7 34  10      - train=8611
furniture_bench_dataset_converted_externally_to_rlds image 224x224 jpeg 2 language_instruction                    8 35  10 774.13 train=5100
jaco_play                    image                 224x224 undeclared 2 observation/natural_language_instruction  7 21  10  71.85 train=976,test=109
kuka                         image                 512x640 jpeg       1 observation/natural_language_instruction 13  8  10  14.79 train=580392
language_table               rgb                   360x640 jpeg       1 observation/instruction                   2  4  10  15.93 train=442226
maniskill_dataset_converted_externally_to_rlds image 256x256 png      2 language_instruction                      7 25  20 150.18 train=30213
robo_set                     image_left            240x424 jpeg       4 language_instruction                      8 16   5      - train=18250
robonet                      image                 240x320 jpeg       3 language_instruction                      5  5   1     30 train=82775
roboturk                     front_rgb             480x640 undeclared 1 observation/natural_language_instruction  8  0  10  93.78 train=1796,test=199
rt1                          image                 256x320 jpeg       1 observation/natural_language_instruction 13  8   3  43.42 train=87212
spoc                         image                 224x384 jpeg       2 language_instruction                      9 10   3      - train=212043,val=21108
stanford_hydra_dataset_converted_externally_to_rlds image 240x320 png 2 language_instruction                      7 27  10 628.48 train=570
stanford_robocook_converted_externally_to_rlds image_1 256x256 jpeg   4 language_instruction                      7  7   5  45.93 train=2460
taco_play                    rgb_static            150x200 undeclared 2 observation/natural_language_instruction  8 15  15     66 train=3242,test=361
tidybot                      image                 360x640 jpeg       1 language_instruction                      0  0   -      - train=24
toto                         image                 480x640 undeclared 1 observation/natural_language_instruction  8  7  30  326.1 train=902,test=101
ucsd_kitchen_dataset_converted_externally_to_rlds image 480x640 png   1 language_instruction                      8 21   2  26.47 train=150
ucsd_pick_and_place_dataset_converted_externally_to_rlds image 224x224 png 1 language_instruction                 4  7   3     50 train=1355
uiuc_d3field                 image_1               360x640 png        4 language_instruction                      3 16   1      - train=192
utaustin_mutex               image                 128x128 png        2 language_instruction                      7 24  20 241.26 train=1500
vima_converted_externally_to_rlds image            128x256 raw        2 multimodal_instruction                   14  0   -      - train=660103
viola                        agentview_rgb         224x224 undeclared 2 observation/natural_language_instruction  8 24  20 510.47 train=135,test=15
"""  # noqa: E501
SWAPPED = {
    "berkeley_autolab_ur5": {"hand_image"},
    "berkeley_fanuc_manipulation": {"image", "wrist_image"},
    "stanford_hydra_dataset_converted_externally_to_rlds": {"image", "wrist_image"},
    "utaustin_mutex": {"image", "wrist_image"},
}
UNINFORMATIVE = {
    *("berkeley_cable_routing", "kuka", "robonet", "roboturk", "stanford_hydra_dataset_converted_externally_to_rlds"),
    *("toto", "uiuc_d3field", "utaustin_mutex", "viola"),
}
# Numbers under steps/action that are not in the default action, and why.
ALTERNATIVE_ACTIONS = {
    "taco_play": {"action/actions", "action/rel_actions_gripper"},  # absolute; in the frame of the camera
    "bc_z": {f"action/future/{name}" for name in ("xyz_residual", "axis_angle_residual", "target_close")},  # 10 steps
    "droid": {
        "action",  # its meaning is disputed
        *(f"action_dict/{name}" for name in ("cartesian_position", "joint_position", "joint_velocity")),
        "action_dict/gripper_velocity",
    },
}
ROWS = {row.split()[0]: row.split()[1:] for row in EXPECTED.splitlines()}
REGISTRY = load_registry()
NAMES = sorted(REGISTRY.datasets)


@cache
def features(name: str) -> dict[str, Feature]:
    """Return the leaves of the feature tree, in the notation of the registry."""
    path = CONFIGS / "features" / f"{REGISTRY.dataset(name).tfds_name}.json"
    leaves = flatten_features(tfds.features.FeaturesDict.from_json(json.loads(path.read_text())), context=name).values()
    return {leaf.name if leaf.level == "step" else f"/{leaf.path}": leaf for leaf in leaves}


def used(parts: tuple[Part, ...], *, sizes: dict[str, int]) -> dict[str, list[int]]:
    values: dict[str, list[int]] = {}
    for part in parts:
        values.setdefault(part.path, []).extend(range(sizes[part.path]) if part.select is None else part.select)
    return values


def numbers(name: str) -> dict[str, int]:
    return {path: leaf.size or 0 for path, leaf in features(name).items() if leaf.dtype != "string"}


def test_the_registry_has_the_29_datasets_and_bridge_dataset() -> None:
    assert sorted(ROWS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_dataset_is_what_is_published(name: str) -> None:
    spec = REGISTRY.dataset(name)
    assert spec.instruction is not None
    height, width, _ = spec.primary.shape or (0, 0, 0)
    splits = ",".join(f"{split}={episodes}" for split, episodes in spec.splits.items())
    dims = [sum(part.dims for part in parts) for parts in (spec.action, spec.state)]
    numeric = [*dims, spec.control_frequency, spec.steps_per_episode]
    assert [
        next(camera for camera in spec.cameras if spec.cameras[camera] == spec.primary),
        f"{height}x{width}",
        spec.primary.storage,
        str(sum(not camera.is_depth for camera in spec.cameras.values())),
        spec.instruction.path,
        *("-" if value is None else f"{value:g}" for value in numeric),
        splits,
    ] == ROWS[name]


@pytest.mark.parametrize("name", NAMES)
def test_cameras_are_the_colour_images_of_the_features(name: str) -> None:
    spec = REGISTRY.dataset(name)
    images = {
        path: tuple(leaf.shape)
        for path, leaf in features(name).items()
        if leaf.level == "step" and leaf.dtype == "uint8" and len(leaf.shape) == 3 and leaf.shape[-1] == 3
    }
    prompt = {path for path in images if path.startswith("multimodal_instruction_assets/")}
    cameras = {camera.path: camera.shape for camera in spec.cameras.values() if not camera.is_depth}
    assert cameras.keys() == images.keys() - prompt
    if name != "bridge_dataset":  # the tree is that of the 64x64 test fixture
        assert cameras.items() <= images.items()


@pytest.mark.parametrize("name", NAMES)
def test_cameras_of_depth_are_the_depth_of_the_features_and_names_end_the_paths(name: str) -> None:
    depth = {
        path: (*leaf.shape[:2], 1)
        for path, leaf in features(name).items()
        if leaf.level == "step" and "depth" in path and leaf.dtype in ("uint16", "float32")
    }
    cameras = REGISTRY.dataset(name).cameras
    assert {camera.path: camera.shape for camera in cameras.values() if camera.is_depth} == depth
    assert all(key == camera.path.rsplit("/", 1)[-1] for key, camera in cameras.items())


def test_cameras_with_swapped_or_unknown_colours_are_marked() -> None:
    swapped = {
        name: {key for key, camera in spec.cameras.items() if camera.channels == "bgr"}
        for name, spec in REGISTRY.datasets.items()
    }
    assert {name: keys for name, keys in swapped.items() if keys} == SWAPPED
    unknown = {n for n in NAMES for camera in REGISTRY.dataset(n).cameras.values() if camera.channels == "unknown"}
    assert unknown == {"fmb"}


def test_a_space_that_only_repeats_another_is_inherited() -> None:
    entries = yaml.safe_load((CONFIGS / "datasets.yaml").read_text())["datasets"]
    alike = {name for name in NAMES if REGISTRY.dataset(name).spaces["eef_delta"].action}
    alike &= {name for name in NAMES if action_of(name, "eef_delta") == action_of(name, "oxe")}
    assert alike == {name for name, entry in entries.items() if "like" in entry["spaces"]["eef_delta"]}
    assert len(alike) == 7


def action_of(name: str, space: SpaceName) -> object:
    parts = REGISTRY.dataset(name).spaces[space]
    return parts.action, parts.drop_first, parts.drop_last


def test_steps_at_the_end_without_a_change_to_the_next_are_dropped() -> None:
    assert action_of("stanford_robocook_converted_externally_to_rlds", "eef_delta")[2] == 1  # type: ignore[index]


def test_every_dataset_has_a_licence_with_its_source() -> None:
    licences = {name: REGISTRY.dataset(name).license or "" for name in NAMES}
    assert {name: text for name, text in licences.items() if not re.fullmatch(r"[^\[]+ \[[^\]]+\]", text)} == {}


def test_uninformative_and_coded_instructions_are_marked() -> None:
    instructions = {name: spec.instruction for name, spec in REGISTRY.datasets.items() if spec.instruction}
    assert {name for name, instruction in instructions.items() if not instruction.informative} == UNINFORMATIVE
    assert [name for name, text in instructions.items() if text.encoding != "text"] == ["language_table"]


@pytest.mark.parametrize("name", NAMES)
def test_every_path_is_a_feature(name: str) -> None:
    spec = REGISTRY.dataset(name)
    paths = [part.path for part in (*spec.action, *spec.state)]
    paths += [path for path in (spec.action_text, spec.robot_path, spec.success_path) if path]
    if spec.instruction:
        paths += [spec.instruction.path, *spec.instruction.alternatives]
    assert sorted(set(paths) - features(name).keys()) == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("vector", ["action", "state"])
def test_every_part_is_of_numbers_that_the_feature_has_and_no_number_is_in_two(name: str, vector: str) -> None:
    parts, sizes = getattr(REGISTRY.dataset(name), vector), numbers(name)
    for path, chosen in used(parts, sizes=sizes).items():
        assert len(set(chosen)) == len(chosen) == sum(part.dims for part in parts if part.path == path), path
        assert max(chosen) < sizes[path], path


@pytest.mark.parametrize("name", NAMES)
def test_all_numbers_of_the_action_are_used_or_have_a_reason(name: str) -> None:
    sizes = numbers(name)
    chosen = used(REGISTRY.dataset(name).action, sizes=sizes)
    actions = {path for path in sizes if re.match(r"action(_dict)?(/|$)", path)}
    partly = {path for path in actions if sorted(chosen.get(path, ())) != list(range(sizes[path]))}
    assert partly == ALTERNATIVE_ACTIONS.get(name, set())


@pytest.mark.parametrize("name", NAMES)
def test_a_feature_of_the_state_is_used_whole(name: str) -> None:
    sizes = numbers(name)
    for path, chosen in used(REGISTRY.dataset(name).state, sizes=sizes).items():
        assert sorted(chosen) == list(range(sizes[path])), path


@pytest.mark.parametrize("name", NAMES)
def test_large_dense_features_and_only_those_are_left_out(name: str) -> None:
    spec = REGISTRY.dataset(name)
    cameras = {camera.path for camera in spec.cameras.values()}
    large = {path for path, leaf in features(name).items() if (leaf.size or 0) > 4096 and path not in cameras}
    embeddings = {path for path in features(name) if path.endswith("language_embedding")}
    assert {path for path in features(name) if spec.leaves_out(path)} == large | embeddings


@pytest.mark.parametrize("name", NAMES)
def test_every_pattern_to_leave_out_matches_something(name: str) -> None:
    spec = REGISTRY.dataset(name)
    for pattern in spec.leave_out if spec.leave_out != SENTENCE_EMBEDDINGS else ():
        lone = spec.model_copy(update={"leave_out": (pattern,)})
        assert any(lone.leaves_out(path) for path in features(name)), pattern


@pytest.mark.parametrize("name", NAMES)
def test_every_quirk_is_a_sentence_with_its_source(name: str) -> None:
    assert all(re.fullmatch(r"[A-Z`a-z].*\. \[[^\]]+\]", quirk) for quirk in REGISTRY.dataset(name).quirks)


def without_source(spec: DatasetSpec) -> list[str]:
    """Return the parts that lack a fact or its source, and the facts that they lack."""
    missing = []
    for part in (*spec.action, *spec.state):
        for fact in part.facts:
            fact_value = getattr(part, fact) or ("unknown" if fact == "gripper" else None)
            source = part.sources.get(fact, spec.sources.get(fact, ""))
            looked = source.startswith("unknown: ") and len(source) > 30
            if fact_value is None or not source or (fact_value == "unknown") != looked:
                missing.append(f"{part.path}{list(part.select or ())}: {fact} {fact_value}, source {source!r}")
    return missing


@pytest.mark.parametrize("name", NAMES)
def test_every_part_says_what_its_numbers_are_and_who_says_so(name: str) -> None:
    assert without_source(REGISTRY.dataset(name)) == []


def test_a_part_without_a_fact_or_its_source_is_found() -> None:
    bridge = REGISTRY.dataset("bridge")
    world, *parts = bridge.action
    for update in ({"frame": None}, {"unit": "unknown"}, {"sources": {"kind": "unknown: sought in every known place"}}):
        changed = bridge.model_copy(update={"action": (world.model_copy(update=update), *parts)})
        assert len(without_source(changed)) == 1


@pytest.mark.parametrize("name", NAMES)
def test_the_factor_of_a_unit_that_is_not_si_is_known_or_declared_unknown(name: str) -> None:
    for part in (*REGISTRY.dataset(name).action, *REGISTRY.dataset(name).state):
        if part.unit in ("mm", "deg"):
            assert part.scale is not None
        elif part.unit != "normalised":
            assert part.scale is None


@pytest.mark.parametrize("name", NAMES)
def test_every_space_is_mapped_or_says_why_not(name: str) -> None:
    spec, sizes = REGISTRY.dataset(name), numbers(name)
    assert set(spec.spaces) == {"oxe", "eef_delta", "eef", "joint"}
    for vector in mapped_vectors(spec).values():
        for term in vector.terms:
            if term.path is not None:
                assert max(term.select) < sizes[term.path] if term.select else term.dims == sizes[term.path]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("space", ["eef_delta", "eef"])
def test_dimensions_of_unknown_unit_are_those_whose_parts_have_none(name: str, space: SpaceName) -> None:
    spec = REGISTRY.dataset(name)
    unknown = set()
    for vector in spec.spaces[space].vectors(space, spec.control_frequency).values():
        names = list(vector.names)
        for term in vector.terms:
            chosen, names = names[: term.size], names[term.size :]
            for offset, index in enumerate(term.select or range(term.dims)):
                for part in (*spec.action, *spec.state):
                    if part.path != term.path or index not in (part.select or range(part.dims)):
                        continue
                    if term.size != term.dims or "turned" in {operation.name for operation in term.then}:
                        assert part.order != "unknown", part
                    elif part.quantity == "gripper":
                        unknown |= set() if part.gripper else {chosen[offset]}
                    elif part.unit == "unknown" or (part.unit == "normalised" and part.scale is None):
                        unknown.add(chosen[offset])
    assert unknown == set(spec.spaces[space].unknown_units)


def test_datasets_that_are_broken_or_no_video_warn() -> None:
    warning = {name for name, spec in REGISTRY.datasets.items() if spec.warning}
    assert warning == {"tidybot", "uiuc_d3field", "vima_converted_externally_to_rlds"}
