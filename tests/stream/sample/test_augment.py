"""The object of an augmentation: its presets, short forms and wrong values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stream import ArgumentError, Augment, Frames

OPENPI = {
    "library": "augmax",
    "crop": [0.9025, 0.9025],
    "rotate": [-5, 5],
    "brightness": [-0.3, 0.3],
    "contrast": [-0.4, 0.4],
    "hue": [-0.1, 0.1],
    "saturation": None,
    "colour_probability": 0.5,
    "correlated": False,
    "share_cameras": True,
    "without_geometry": ["wrist"],
}
OCTO = {
    "library": "tensorflow",
    "crop": [0.8, 1],
    "ratio": [0.9, 1.1],
    "rotate": [0, 0],
    "brightness": [-0.1, 0.1],
    "contrast": [0.9, 1.1],
    "saturation": [0.9, 1.1],
    "hue": [-0.05, 0.05],
    "correlated": True,
    "share_cameras": False,
    "without_geometry": ["wrist"],
}
OPENVLA = {
    **OCTO,
    "crop": [0.9, 0.9],
    "ratio": [1, 1],
    "brightness": [-0.2, 0.2],
    "contrast": [0.8, 1.2],
    "saturation": [0.8, 1.2],
    "without_geometry": [],
}
LEROBOT = {
    "library": "torchvision",
    "crop": [1, 1],
    "rotate": [-5, 5],
    "translate": 0.05,
    "brightness": [0.8, 1.2],
    "contrast": [0.8, 1.2],
    "saturation": [0.5, 1.5],
    "hue": [-0.05, 0.05],
    "sharpness": [0.5, 1.5],
    "most_operations": 3,
    "geometry": "last",
    "correlated": False,
    "share_cameras": False,
}


@pytest.mark.parametrize(
    ("preset", "fields"), [("openpi", OPENPI), ("octo", OCTO), ("openvla", OPENVLA), ("lerobot", LEROBOT)]
)
def test_a_preset_has_the_numbers_of_its_trainer(preset: Any, fields: dict[str, Any]) -> None:
    augment = Augment(preset)
    assert {name: getattr(augment, name) for name in fields} == fields
    assert repr(augment) == f"Augment('{preset}')"


@pytest.mark.parametrize(
    "augment",
    [
        Augment(),
        Augment("openpi"),
        Augment("octo", hue=0, crop=[0.5, 1]),
        Augment(library="augmax", contrast=0.2),
        Augment(crop=0.9, rotate=(-3, 7), sharpness=[0, 2], most_operations=2, without_geometry=("wrist", "hand")),
    ],
    ids=repr,
)
def test_an_augmentation_is_its_repr_and_its_json_with_all_numbers(augment: Augment) -> None:
    assert eval(repr(augment), {"Augment": Augment}) == augment
    content = json.loads(json.dumps(augment.to_json()))
    assert Augment.of("augment", content) == augment and content["crop"] == augment.crop
    frames = Frames([0], augment=augment)
    assert Frames.of("frames", json.loads(json.dumps(frames.to_json()))) == frames


def test_a_number_is_a_distance_from_no_change() -> None:
    augment = Augment(brightness=0.1, hue=0.2, rotate=3, crop=0.8)
    assert (augment.brightness, augment.hue, augment.rotate) == ([0.9, 1.1], [-0.2, 0.2], [-3, 3])
    assert augment.crop == [0.8, 0.8] and augment.operations == ["geometry", "brightness", "hue"]
    assert Augment("octo", brightness=0, contrast=0, saturation=0, hue=0, crop=1, ratio=1).operations == []


def test_a_name_and_a_mapping_are_the_object() -> None:
    objects = [Frames([0], augment=value) for value in ("octo", {"preset": "octo"}, Augment("octo"))]
    assert objects[0] == objects[1] == objects[2] and Frames([0]).augment is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"preset": "opnpi"}, "preset='opnpi'; expected one of 'openpi', 'octo', 'openvla', 'lerobot'"),
        ({"preset": "octo", "library": "augmax"}, "library='augmax' with preset='octo'"),
        ({"library": "kornia"}, "library='kornia'; expected one of 'torchvision', 'tensorflow', 'augmax'"),
        ({"library": "augmax", "saturation": 0.2}, "saturation=0.2: augmax does not change it; leave it out"),
        ({"preset": "octo", "sharpness": 2}, "sharpness=2: tensorflow does not change it"),
        ({"crop": 1.2}, "crop=1.2; expected a number from 0.01 to 1"),
        ({"crop": (0.9, 0.8)}, "crop=(0.9, 0.8); expected (least, most)"),
        ({"crop": "0.9"}, "crop='0.9'; expected a number, or (least, most)"),
        ({"hue": 0.7}, "hue=0.7; expected a number from 0 to 0.5"),
        ({"hue": float("nan")}, "hue=nan; expected a number, or (least, most)"),
        ({"brightness": [-1, 1]}, "brightness=-1; expected a number from 0 to 10"),
        ({"translate": True}, "translate=True; expected a number from 0 to 1"),
        ({"geometry": "middle"}, "geometry='middle'; expected one of 'first', 'last'"),
        ({"most_operations": 0}, "most_operations=0; expected a whole number >= 1"),
        ({"correlated": 1}, "correlated=1; expected True or False"),
        ({"without_geometry": "wrist"}, "without_geometry='wrist'; expected a list"),
        ({"colour_probability": 2}, "colour_probability=2; expected a number from 0 to 1"),
        ({"croop": 0.9}, "unknown argument 'croop'; did you mean 'crop'?"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_value_is_one_sentence(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError) as error:
        Augment(**arguments)
    assert message in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(ArgumentError, match="augment: "):
        Frames([0], augment=arguments)
