"""Generated episodes have what is special about each dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.sample.episode import Episode
from convert.sample.source import SampleSource
from tests.fixtures.command import REPOSITORY
from tests.fixtures.datasets.sampled import NAMES, REGISTRY, STEPS, Sample, parsed, pixels

FACTS = REPOSITORY.parent / "shared" / "oxe" / "datasets.json"
RED = 100
"""Red exceeds blue by more than this on the red object only; blue nowhere exceeds red by as much."""
SWAPPED = [
    (name, camera.path)
    for name in NAMES
    for camera in REGISTRY.dataset(name).cameras.values()
    if camera.channels == "bgr"
]


@pytest.mark.parametrize(("name", "path"), SWAPPED)
def test_red_and_blue_are_swapped_where_the_registry_says_so(sample: Sample, name: str, path: str) -> None:
    picture = stored_picture(sample(name), path)
    surplus = picture[:, :, 2].astype(int) - picture[:, :, 0]
    assert (surplus > RED).sum() > 10 * (surplus < -RED).sum() + 10


@pytest.mark.parametrize("name", NAMES)
def test_red_and_blue_are_in_place_elsewhere(sample: Sample, name: str) -> None:
    for camera in REGISTRY.dataset(name).cameras.values():
        if (
            camera.channels == "rgb"
            and not camera.is_depth
            and (name, camera.path) != ("bridge_dataset", "observation/image_3")
        ):
            picture = stored_picture(sample(name), camera.path)
            surplus = picture[:, :, 0].astype(int) - picture[:, :, 2]
            assert (surplus > RED).sum() > 10 * (surplus < -RED).sum() + 10, camera.path


def stored_picture(directory: Path, path: str) -> np.ndarray:
    """The first frame of a camera as stored, channels in their stored order."""
    values = parsed(directory)[0][f"steps/{path}"]
    if isinstance(values[0], bytes):
        return pixels(values[0])
    camera = next(c for c in REGISTRY.dataset(directory.parent.name).cameras.values() if c.path == path)
    shape = camera.shape or ()
    return np.array(values[: np.prod(shape)], np.uint8).reshape(shape)


@pytest.mark.parametrize("name", NAMES)
def test_images_are_stored_as_declared_and_undeclared_ones_as_png(sample: Sample, name: str) -> None:
    source = SampleSource(REGISTRY.dataset(name))
    episode = parsed(sample(name))[0]
    for feature in source.features:
        if feature.kind == "image":
            image_format = connector(source.tree, feature.path).encoding_format or "png"
            magic = {"png": b"\x89PNG", "jpeg": b"\xff\xd8\xff"}[image_format]
            assert all(value.startswith(magic) for value in episode[feature.path]), feature.path


def connector(node: Any, path: str) -> Any:
    """The connector of a leaf by its flattened name."""
    node = getattr(node, "feature", node)
    key = next(key for key in node if path == key or path.startswith(f"{key}/"))
    return node[key] if path == key else connector(node[key], path[len(key) + 1 :])


def test_language_table_instructions_are_padded_bytes_and_not_all_ascii(sample: Sample) -> None:
    texts = []
    for episode in parsed(sample("language_table")):
        codes = np.array(episode["steps/observation/instruction"]).reshape(STEPS, 512)
        assert (codes[:, -100:] == 0).all()
        texts.append(bytes(codes[0].astype(np.uint8)).rstrip(b"\0").decode())
    assert texts[0].isascii() and not texts[1].isascii()


@pytest.mark.parametrize(
    "name", ["jaco_play", "taco_play", "ucsd_kitchen_dataset_converted_externally_to_rlds", "utaustin_mutex"]
)
def test_some_instructions_end_in_nul(sample: Sample, name: str) -> None:
    instruction = REGISTRY.dataset(name).instruction
    assert instruction is not None
    texts = [episode[f"steps/{instruction.path}"][0] for episode in parsed(sample(name))]
    assert {text.endswith(b"\0") for text in texts} == {True, False}


def test_droid_instructions_are_empty_in_some_episodes_and_then_sometimes_given_second() -> None:
    source = SampleSource(REGISTRY.dataset("droid"))
    texts = []
    for number in range(3):
        episode = Episode(source, "train", episode_number=number, num_steps=1, seed=0).columns()
        texts.append([bool(episode[f"steps/language_instruction{end}"][0]) for end in ("", "_2", "_3")])
    assert texts == [[True, True, True], [False, True, False], [False, False, False]]


def test_bridge_first_action_is_all_zero(sample: Sample) -> None:
    for episode in parsed(sample("bridge")):
        for part in ("world_vector", "rotation_delta"):
            action = np.array(episode[f"steps/action/{part}"]).reshape(STEPS, 3)
            assert not action[0].any() and action[1:].all()


def test_kuka_state_is_compressed_by_zlib(sample: Sample) -> None:
    episode = parsed(sample("kuka"))[0]
    assert all(value[0] == 0x78 for value in episode["steps/observation/clip_function_input/base_pose_tool_reached"])


def test_tidybot_action_is_text_and_receptacles_are_ragged(sample: Sample) -> None:
    episode = parsed(sample("tidybot"))[0]
    assert len(set(episode["steps/action"])) == STEPS
    lengths = episode["steps/observation/receptacles/ragged_row_lengths_0"]
    assert len(set(lengths)) > 1
    assert len(episode["steps/observation/receptacles/ragged_flat_values"]) == sum(lengths)


def test_vima_stores_raw_pixels_and_prompts_of_several_lengths(sample: Sample) -> None:
    episodes = parsed(sample("vima_converted_externally_to_rlds"))
    assert len(episodes[0]["steps/observation/image"]) == STEPS * 128 * 256 * 3
    lengths = [episode["steps/multimodal_instruction_assets/image/ragged_row_lengths_0"] for episode in episodes]
    assert lengths == [[2] * STEPS, [1] * STEPS]
    assert episodes[0]["episode_metadata/end-effector type"] == [b"suction"]


def test_bridge_dataset_has_a_constant_placeholder_camera(sample: Sample) -> None:
    assert len(set(parsed(sample("bridge_dataset"))[0]["steps/observation/image_3"])) == 1


@pytest.mark.long
@pytest.mark.skipif(not FACTS.exists(), reason="the facts about the datasets are not beside the repository")
def test_the_feature_trees_are_those_of_the_facts() -> None:
    for facts in json.loads(FACTS.read_text())["datasets"]:
        spec = next(spec for spec in map(REGISTRY.dataset, NAMES) if spec.tfds_name == facts["tfds_name"])
        assert described(SampleSource(spec).tree) == expected(facts["features"]), facts["tfds_name"]


def described(node: Any) -> Any:
    kind = type(node).__name__
    if kind == "FeaturesDict":
        return {key: described(child) for key, child in node.items()}
    if kind in ("Dataset", "Sequence"):
        return kind, described(node.feature)
    dtype = np.dtype(node.np_dtype)
    encoding = node.encoding_format if kind == "Image" else node._encoding.value
    return kind, tuple(node.shape), "string" if dtype.kind in "OSU" else dtype.name, encoding


def expected(node: dict[str, Any]) -> Any:
    kind = node["kind"]
    children = {key: expected(child) for key, child in node.get("features", {}).items()}
    if kind == "FeaturesDict":
        return children
    if kind in ("Dataset", "Sequence"):
        return kind, children or expected(node["feature"])
    encoding = node["encoding_format"] if kind == "Image" else node.get("tensor_encoding", "none")
    return kind, tuple(node["shape"]), node["dtype"], encoding
