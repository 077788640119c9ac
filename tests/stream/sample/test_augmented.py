"""Augmented batches: the same pictures in workers, ranks and replays, shared by cameras or not, masks and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import ArgumentError, Augment, Frames, SampleSource, Workers, digest, load_loader, make_loader, samples
from stream.loader.loader import Loader
from tests.fixtures.command import run

TWO_CAMERAS = ["exterior_image_1_left", "exterior_image_2_left", "wrist"]
BRIGHT = Augment(library="tensorflow", brightness=(0.1, 0.4))


def open_loader(root: Path, mixture: Any = "bridge", *, frames: Any = None, **arguments: Any) -> Loader:
    frames = Frames([-1, 0], cameras=["primary"], edges="repeat", augment="openpi") if frames is None else frames
    return make_loader(root, mixture, batch_size=8, frames=frames, **arguments)


def test_workers_and_ranks_give_the_same_pictures(frames_root: Path) -> None:
    loader = open_loader(frames_root, "bridge,rt1")
    expected = [loader.batch_at(step) for step in range(3)]
    for workers in (Workers(0, threads=2), Workers(3)):
        batches = iter(open_loader(frames_root, "bridge,rt1", num_workers=workers))
        assert [digest(next(batches)) for _ in range(3)] == [digest(batch) for batch in expected]
        batches.close()
    ranks = [iter(open_loader(frames_root, "bridge,rt1", rank=rank, world_size=2)) for rank in range(2)]
    for batch in expected:
        parts = [next(rank) for rank in ranks]
        for key in ("frames/primary", "sample"):
            np.testing.assert_array_equal(np.concatenate([part[key] for part in parts]), batch[key])


def test_a_replay_of_any_row_is_the_same_picture(frames_root: Path, tmp_path: Path) -> None:
    loader = open_loader(frames_root)
    loader.save(tmp_path / "loader.json")
    saved = json.loads((tmp_path / "loader.json").read_text())["sample"]["frames"]["augment"]
    assert saved == Augment("openpi").to_json()
    replayed = load_loader(tmp_path / "loader.json")
    assert replayed.spec == loader.spec and "Augment('openpi')" in repr(loader.spec)
    for step in (0, 17, 5_003):
        assert digest(replayed.batch_at(step)) == digest(loader.batch_at(step))
    options = ("--loader", str(tmp_path / "loader.json"), "--step", "17", "--digest")
    assert digest(loader.batch_at(17)) in run("replay", *options, module="pairstream").out
    elements = samples(frames_root, "bridge", frames=loader.spec.frames)
    batch = loader.batch_at(2)
    for row in (0, 5):
        np.testing.assert_array_equal(elements[16 + row]["frames/primary"], batch["frames/primary"][row])


def test_a_sample_is_drawn_again_in_each_epoch_and_by_another_seed(frames_root: Path) -> None:
    frames = Frames([0], augment="octo")
    loader = open_loader(frames_root, frames=frames, num_epochs=2, shuffle="none")
    size = loader.sizes["bridge"]
    batches = [loader.batch_at(step) for step in range(-(-2 * size // 8))]
    pictures = np.concatenate([batch["frames"] for batch in batches])
    assert np.abs(pictures[:size].astype(int) - pictures[size : 2 * size]).max() > 10
    other = open_loader(frames_root, frames=frames, num_epochs=2, shuffle="none", seed=1)
    assert (other.batch_at(0)["frames"] != batches[0]["frames"]).any()


def test_all_frames_of_a_sample_have_the_same_draw(frames_root: Path) -> None:
    batch = open_loader(frames_root, frames=Frames([0, 0, 1], edges="repeat", augment="octo")).batch_at(3)
    np.testing.assert_array_equal(batch["frames"][:, 0], batch["frames"][:, 1])
    plain = open_loader(frames_root, frames=Frames([0, 1], edges="repeat")).batch_at(3)["frames"].astype(int)
    bright = open_loader(frames_root, frames=Frames([0, 1], edges="repeat", augment=BRIGHT)).batch_at(3)["frames"]
    shifts = np.where(bright < 255, bright - plain, np.nan)
    shift = np.nanmedian(shifts, axis=(1, 2, 3, 4))
    assert np.nanmax(np.abs(shifts - shift[:, None, None, None, None])) <= 1 and np.ptp(shift) > 20


@pytest.mark.parametrize("share_cameras", [True, False])
def test_cameras_share_the_draw_by_choice(frames_root: Path, share_cameras: bool) -> None:
    def shifts(augment: Augment | None) -> np.ndarray:
        loader = open_loader(frames_root, "droid", frames=Frames([0], cameras=TWO_CAMERAS, augment=augment))
        batch = loader.batch_at(1)
        return np.stack([batch[f"frames/{camera}"] for camera in TWO_CAMERAS], axis=1).astype(float)

    shared: Any = {"share_cameras": share_cameras, "without_geometry": ["wrist"], "rotate": 1e-7}
    bright = shifts(Augment(library="tensorflow", brightness=(0.1, 0.4), **shared))
    difference = np.where((bright > 0) & (bright < 255), bright - shifts(None), np.nan)
    first, second, wrist = np.nanmedian(difference, axis=(2, 3, 4, 5)).T
    assert (np.abs(first - second) <= 1).all() == share_cameras
    assert np.abs(first - wrist).max() > 5


def test_the_wrist_is_not_moved_by_name_or_role(frames_root: Path) -> None:
    augment = Augment(crop=0.5, without_geometry=["wrist"])
    for cameras, keys in (
        (["primary", "wrist"], ("frames/primary", "frames/wrist")),
        ({"view": "primary", "hand": "wrist"}, ("frames/view", "frames/hand")),
    ):
        batch, plain = (
            open_loader(frames_root, "droid", frames=Frames([0], cameras=cameras, augment=choice)).batch_at(0)
            for choice in (augment, None)
        )
        assert (batch[keys[0]] != plain[keys[0]]).any()
        np.testing.assert_array_equal(batch[keys[1]], plain[keys[1]])


def test_an_augmentation_without_operations_gives_the_plain_frames(frames_root: Path) -> None:
    plain, identity = (
        open_loader(frames_root, frames=Frames([0], augment=augment)) for augment in (None, Augment(share_cameras=True))
    )
    assert digest(plain.batch_at(2)) == digest(identity.batch_at(2))


def test_absent_cameras_stay_black_and_masks_stay(frames_root: Path) -> None:
    frames: dict[str, Any] = {"cameras": ["primary", "wrist"], "edges": "repeat", "size": (64, 64)}
    plain, bright = (
        open_loader(frames_root, "bridge,droid", frames=Frames([-2, 0], **frames, augment=augment)).batch_at(0)
        for augment in (None, BRIGHT)
    )
    absent = plain["dataset"] == 0
    assert 0 < absent.sum() < 8 and not bright["frames/wrist"][absent].any()
    assert bright["frames/wrist"][~absent].all()
    for key in plain:
        if "frames/" not in key:
            np.testing.assert_array_equal(plain[key], bright[key])


def test_a_state_of_another_augmentation_is_a_warning(frames_root: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = open_loader(frames_root).state_at(3)
    assert state["content"]["frames.augment"] == json.loads(json.dumps(Augment("openpi").to_json()))
    other = open_loader(frames_root, frames=Frames([-1, 0], cameras=["primary"], edges="repeat", augment="octo"))
    assert other.step_of(state) == 3 and "frames.augment" in caplog.text


def test_an_episode_and_a_source_have_plain_frames(frames_root: Path) -> None:
    plain, bright = (open_loader(frames_root, frames=Frames([0], augment=augment)) for augment in (None, BRIGHT))
    episodes = [loader.episode("bridge", 0).cameras["frames"].frames for loader in (plain, bright)]
    np.testing.assert_array_equal(episodes[0], episodes[1])
    with pytest.raises(ArgumentError, match=r"SampleSource cannot draw Augment\(.*again in each epoch"):
        SampleSource(frames_root, "bridge", frames=Frames([0], augment=BRIGHT))
