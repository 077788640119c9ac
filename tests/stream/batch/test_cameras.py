"""Cameras of a mixture by name and by role: names come first, and a camera that is named twice is one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stream.base.errors import ArgumentError
from stream.batch.cameras import LoadedCamera, find_cameras
from stream.format.frame import StoredCamera
from stream.sample.frames import Frames

HAND = StoredCamera("hand", "wrist", ((8, 8),))
SIDE = StoredCamera("wrist", "side", ((8, 8),))
FRONT = StoredCamera("front", "primary", ((8, 8),))
DEPTH = StoredCamera("hand_depth", "wrist", ((8, 8),), is_depth=True)


def find(cameras: Any, *members: list[StoredCamera]) -> tuple[LoadedCamera, ...]:
    fields: Any = [SimpleNamespace(layout="frames", stored_cameras=stored) for stored in members]
    return find_cameras(Frames(cameras=cameras), fields, [f"member {number}" for number in range(len(members))])


def test_a_name_goes_before_a_role_in_any_order_of_the_cameras() -> None:
    for stored in ([HAND, SIDE, FRONT], [SIDE, HAND, FRONT], [FRONT, HAND, SIDE]):
        (camera,) = find("wrist", stored)
        assert camera.sources == ((SIDE,),)
        assert camera.stored == ((stored.index(SIDE),),)
    # A member without this name has the camera of this role.
    (camera,) = find("wrist", [FRONT, SIDE, HAND], [FRONT, HAND])
    assert camera.stored == ((1,), (1,)) and camera.sources == ((SIDE,), (HAND,))


def test_a_camera_that_is_given_by_name_and_by_role_is_drawn_as_one() -> None:
    (camera,) = find({"view": ("primary", "front")}, [HAND, FRONT])
    assert camera.stored == ((1,),) and not camera.is_drawn
    (camera,) = find({"view": ("front", "hand", "primary")}, [HAND, FRONT], [FRONT])
    assert camera.stored == ((1, 0), (0,)) and camera.is_drawn


def test_without_a_choice_the_primary_camera_is_loaded_or_else_the_first() -> None:
    (camera,) = find(None, [HAND, FRONT], [SIDE, HAND])
    assert camera.stored == ((1,), (0,)) and camera.frames == "frames"


def test_a_role_of_depth_is_another_than_that_of_colour() -> None:
    color, depth = find(["wrist", "depth/wrist"], [DEPTH, HAND])
    assert (color.stored, color.frames) == (((1,),), "frames/wrist")
    assert (depth.stored, depth.frames) == (((0,),), "depth/wrist")
    with pytest.raises(ArgumentError, match="no dataset of the mixture stores 'depth/primary'; they store depth/wrist"):
        find("depth/primary", [DEPTH, FRONT])
