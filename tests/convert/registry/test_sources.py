from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from convert.errors import ConfigError
from convert.registry.registry import Registry, load_registry
from convert.source.kinds import dataset_name


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_registry()


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("lerobot:lerobot/pusht", "lerobot_pusht"),
        ("lerobot:lerobot/pusht/", "lerobot_pusht"),
        ("lerobot:/hub/me/pick cube/", "pick_cube"),
        ("lerobot:./one", "one"),
        ("lerobot:s3://bucket/hub/two", "two"),
        ("rlds:/data/my_robot/1.0.0", "my_robot"),
        ("rlds:my_robot", "my_robot"),
        ("python:readers/my_arm.py:episodes", "my_arm"),
        ("root:data/oxe/bridge", "bridge"),
        ("rosbag:data/bags", "bags"),
    ],
)
def test_a_source_is_named_by_organisation_and_name_or_by_its_folder_or_file(source: str, name: str) -> None:
    kind, _, path = source.partition(":")
    assert dataset_name(kind, path) == name


@pytest.mark.parametrize("name", ["lerobot:", "lerobot:/"])
def test_a_source_without_a_name_is_refused(name: str, registry: Registry) -> None:
    with pytest.raises(ConfigError, match=f"^'{name}' names no dataset; write lerobot:NAME or lerobot:/PATH"):
        registry.resolve(name)


ROLES = {"top": "primary", "hand": "wrist"}
ENTRY: dict[str, Any] = {
    "version": "3.0.0",
    "description": "What it says.",
    "cameras": {
        name: {"path": name, "role": role, "storage": "raw", "shape": [8, 8, 3]} for name, role in ROLES.items()
    },
    "control_frequency": 10,
}


def test_declared_fields_go_before_those_of_the_dataset_and_of_a_camera_alone(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    declared = {"source": "lerobot:org/one", "control_frequency": 5, "cameras": {"top": {"channels": "bgr"}}}
    path.write_text(yaml.safe_dump({"datasets": {"org_one": declared}}))
    asked: list[tuple[str, str]] = []

    def describe(name: str, source: str, layout: Mapping[str, Any]) -> dict[str, Any]:
        asked.append((name, source))
        assert not layout
        return ENTRY

    registry = load_registry(config=[path])
    first, two = registry.resolve("lerobot:org/one,lerobot:org/two", describe)
    assert asked == [("org_one", "lerobot:org/one"), ("org_two", "lerobot:org/two")]
    assert (first.spec.control_frequency, two.spec.control_frequency) == (5, 10)
    assert first.spec.cameras["top"].channels == "bgr"
    assert first.spec.cameras["top"].role == "primary"
    assert first.spec.cameras["hand"] == two.spec.cameras["hand"]
    assert registry.resolve("org_one", describe) == [first]
    assert load_registry().resolve(str(path), describe) == [first]


def test_the_layout_of_an_entry_goes_to_its_source(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"datasets": {"mine": {"source": "python:x.py:read", "layout": {"rate": 5}}}}))
    (actual,) = load_registry(config=[path]).resolve(
        "mine", lambda name, source, layout: {**ENTRY, "robot": repr(layout)}
    )
    assert actual.spec.robot == "{'rate': 5}"


def test_a_later_file_may_give_a_dataset_a_source(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"datasets": {"bridge": {"source": "lerobot:org/bridge"}}}))
    (actual,) = load_registry(config=[path]).resolve("bridge", lambda name, source, layout: ENTRY)
    assert actual.spec.description == "What it says."


def test_a_later_file_may_describe_a_dataset_in_full_in_place_of_its_source(tmp_path: Path, registry: Registry) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(yaml.safe_dump({"datasets": {"mine": {"source": "lerobot:org/one"}}}))
    entry = registry.datasets["bridge"].model_dump(mode="json", exclude_defaults=True)
    second.write_text(yaml.safe_dump({"datasets": {"mine": {**entry, "name": "mine"}}}))
    assert load_registry(config=[first, second]).resolve("mine")[0].spec.tfds_name == entry["tfds_name"]


def test_a_source_does_not_take_the_name_of_another() -> None:
    with pytest.raises(ConfigError, match="bridge_dataset is the name of a dataset or mixture of the registry"):
        load_registry().resolve("lerobot:bridge/dataset", lambda name, source, layout: ENTRY)


def test_an_unknown_kind_names_the_closest(registry: Registry) -> None:
    with pytest.raises(ConfigError, match="no kind of source 'lerobt'; did you mean 'lerobot'"):
        registry.resolve("lerobt:org/name")
