"""The packaged datasets agree with the facts that were collected of the published ones."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from convert.registry.registry import load_registry

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIGS = REPOSITORY / "configs"
FACTS = REPOSITORY.parent / "shared" / "oxe" / "datasets.json"
REGISTRY = load_registry()
PUBLISHED = sorted(set(REGISTRY.datasets) - {"bridge_dataset"})


@pytest.fixture(scope="module")
def facts() -> dict[str, dict[str, Any]]:
    if not FACTS.is_file():
        pytest.skip(f"{FACTS} is not there")
    return {dataset["name"]: dataset for dataset in json.loads(FACTS.read_text())["datasets"]}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_dataset_agrees_with_the_facts(name: str, facts: dict[str, dict[str, Any]]) -> None:
    fact, spec = facts[name], REGISTRY.dataset(name)
    view = fact["pair_view"]
    assert spec.instruction is not None
    cameras: dict[str, list[str]] = {}
    for key, camera in spec.cameras.items():
        cameras.setdefault("depth" if camera.is_depth else camera.role, []).append(key)
    published = {role: [key] for role in ("primary", "secondary", "wrist") if (key := fact["cameras"][role])}
    further = {"other": fact["cameras"]["other_color"], "depth": fact["cameras"]["depth"]}
    published |= {role: keys for role, keys in further.items() if keys}
    assert cameras == published
    for ours, facts_say in (
        (spec.tfds_name, fact["tfds_name"]),
        (spec.version, fact["version"]),
        (spec.splits, fact["splits"]),
        (spec.steps_per_episode, fact["mean_steps_per_episode"]),
        (spec.control_frequency, fact["control_frequency_hz"]),
        (spec.offset, view["pair_offset_steps"]),
        (f"steps/{spec.primary.path}", view["image_path"]),
        (list(spec.primary.shape or ()), view["image_shape"]),
        (f"steps/{spec.instruction.path}", view["instruction"]["path"]),
    ):
        assert ours == facts_say


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_instruction_is_sought_where_the_facts_say_and_the_state_is_complete(
    name: str, facts: dict[str, dict[str, Any]]
) -> None:
    view, spec = facts[name]["pair_view"], REGISTRY.dataset(name)
    assert spec.instruction is not None
    sought = [path[1:] if path.startswith("/") else f"steps/{path}" for path in spec.instruction.alternatives]
    assert sought == view["instruction"]["alternatives"]
    if view["state_path"]:
        state = view["state_path"].removeprefix("steps/")
        assert sum(p.dims for p in spec.state if p.path == state) == math.prod(view["state_true_shape"])


@pytest.mark.parametrize("name", PUBLISHED)
def test_wrong_numbers_of_the_source_project_are_told_beside_the_right_ones(
    name: str, facts: dict[str, dict[str, Any]]
) -> None:
    entry = entry_text(name)
    for finding in facts[name]["discrepancies"]:
        if finding["field"] == "approx_num_pairs":
            assert finding["detail"].split()[0] in entry
        if finding["field"] == "avg_episode_length":
            assert finding["detail"].split(";")[0].replace("Registry says ", "registry: ") in entry


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_kind_of_finding_has_left_its_mark(name: str, facts: dict[str, dict[str, Any]]) -> None:
    spec, entry = REGISTRY.dataset(name), entry_text(name)
    marks = {
        "control_frequency_hz": "registry: 10",
        "splits": "splits: {",
        "version": "version",
        "literal '/' keys": "contain a slash",
        "image channels": "channels: bgr",
        "hand_image channels": "channels: bgr",
        "depth": "depth",
        "depth image": "image_with_depth",
        "dataset": "quirks",
        "action dtype": "float64",
        "action meaning": "disputed",
        "state": "gripper_position",
        "episode_metadata": "episode_metadata",
        "documentation": "inventory page",
        "encoding": "asks for PNG",
        "tfds_name": "spoc_robot",
        "is_last": "is_last",
        "pairs": "warning",
        "image_key": "storage: raw",
        "episodes": "1,804 episodes",
        "pair_offset_steps": "offset",
    }
    for finding in facts[name]["discrepancies"]:
        field = finding["field"]
        if field in marks:
            assert marks[field] in entry, finding
        elif field == "image encoding":
            assert spec.primary.storage in ("undeclared", "png")
            assert "PNG" in entry
        elif field == "instruction":
            assert re.search("instruction|sentence", " ".join(spec.quirks)), finding
        elif field in ("state_dim", "state_key", "action_key", "action"):
            assert re.search("registry: |registry's", entry), finding


def entry_text(name: str) -> str:
    """Return the lines of a dataset in datasets.yaml, comments included."""
    text = (CONFIGS / "datasets.yaml").read_text()
    return text.split(f"\n  {name}:\n", 1)[1].split("\n\n", 1)[0]
