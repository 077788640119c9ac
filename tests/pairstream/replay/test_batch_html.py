"""Rows of a batch as HTML show their frames, what these are, and the actions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pairstream.replay.batch_html import find_pictures, rows_html, write_page
from stream.order.reference import SampleRef


def refs_of(count: int, **fields: Any) -> list[SampleRef]:
    """Return the origins of some rows, of the first steps of an episode."""
    texts = {"dataset": "bridge", "split": "train", "source_file": "bridge-train.tfrecord-00000-of-00002"}
    shared = {**texts, "episode_id": "x", "shard": "train-00000-of-00002", "language": "pick it up", "episode": 3}
    shared |= {"offset": 5, "epoch": 0}
    return [SampleRef(**{**shared, "sample": row, "step": row, "record": row, **fields}) for row in range(count)]


def batch_of(rows: int, *, frames: int = 2, **more: Any) -> dict[str, Any]:
    pixels = np.random.default_rng(0).integers(0, 256, (rows, frames, 64, 64, 3), np.uint8)
    return {"frames": pixels, "sample": np.arange(rows), **more}


def acting(action: np.ndarray, **more: Any) -> dict[str, Any]:
    """Return a batch with an action that is valid everywhere."""
    return batch_of(len(action), action=action, **{"action_mask": np.ones(action.shape, bool), **more})


def heights_of(page: str) -> list[list[float]]:
    """Return the vertical positions of the points of each curve; 0 is at the top."""
    curves = re.findall(r"points='([^']*)'", page)
    return [[float(point.partition(",")[2]) for point in curve.split()] for curve in curves]


@pytest.mark.parametrize(("rows", "frames"), [(1, 1), (3, 2), (65, 6)])
def test_every_frame_of_every_row_is_shown(rows: int, frames: int) -> None:
    page = rows_html(batch_of(rows, frames=frames), refs_of(rows))
    assert re.findall(r"data-row='(\d+)'", page) == list(map(str, range(rows)))
    assert len(set(re.findall(r"src='([^']*)'", page))) == rows * frames


def test_rows_are_shown_in_the_order_that_is_asked_for() -> None:
    assert re.findall(r"data-row='(\d+)'", rows_html(batch_of(4), refs_of(4), rows=[2, 0])) == ["2", "0"]


def test_a_frame_that_a_row_does_not_have_is_an_empty_box() -> None:
    page = rows_html(batch_of(2, frames_mask=np.array([[True, True], [True, False]])), refs_of(2))
    assert (page.count("<img"), page.count("<div class='missing'>")) == (3, 1)


def test_a_row_names_its_steps_delay_and_origin() -> None:
    page = rows_html(batch_of(2, action_delay=np.array([3, 2])), refs_of(2))
    assert "bridge train 3, steps 1..6, delay 2" in page and "delay 3" in page
    assert "bridge-train.tfrecord-00000-of-00002, id x, record train-00000-of-00002:1, sample 1, epoch 0" in page


def test_texts_of_the_data_are_no_markup_and_any_script_is_text() -> None:
    page = rows_html(
        batch_of(1), refs_of(1, language="<script>红", dataset="<b>"), faults={0: ["<i>"]}, links={0: "'<u>"}
    )
    assert "&lt;script&gt;红" in page
    assert not re.search("<script|<b><b>|<i>|<u>", page)


def test_faults_mark_their_rows_only() -> None:
    page = rows_html(batch_of(3), refs_of(3), faults={1: ["action: NaN in x", "replaced: bad"]})
    assert re.findall(r"class='(batch-row[^']*)'", page) == ["batch-row", "batch-row bad", "batch-row"]
    assert "action: NaN in x" in page and "replaced: bad" in page


def test_a_link_leads_from_frames_and_name() -> None:
    assert rows_html(batch_of(2), refs_of(2), links={0: "/episode/3"}).count("href='/episode/3'") == 2


def test_a_rising_action_rises_around_0_in_the_middle_and_masked_steps_are_left_out() -> None:
    action = np.array([[[-2], [0], [2], [9]]], np.float32)
    (heights,) = heights_of(rows_html(acting(action, action_mask=action < 9), refs_of(1)))
    assert heights == [96, 50, 4]


def test_a_curve_is_drawn_for_each_dimension_that_the_row_has() -> None:
    mask = np.tile(np.arange(4) < 3, (1, 5, 1))
    assert len(heights_of(rows_html(acting(np.ones((1, 5, 4)), action_mask=mask), refs_of(1)))) == 3


def test_a_reduced_action_is_a_bar_up_or_down_from_the_middle() -> None:
    page = rows_html(acting(np.array([[2.0, -1.0, 0.0]])), refs_of(1))
    bars = re.findall(r"<rect x='25' width='50' y='([\d.]+)' height='([\d.]+)'", page)
    assert [(float(top), float(height)) for top, height in bars] == [(4, 46), (50, 23), (50, 1)]


def test_nan_is_red_at_its_step_and_the_curve_has_a_gap_there() -> None:
    action = np.array([[[1], [1], [np.nan], [1], [1]]])
    page = rows_html(acting(action), refs_of(1))
    assert re.findall(r"class='nan' x='([\d.]+)' width='([\d.]+)'", page) == [("40.0", "20.0")]
    assert [len(curve) for curve in heights_of(page)] == [2, 2]
    assert "<span class='bad-text'>nan</span>" in page
    assert "<span class='bad-text'>inf</span>" in rows_html(acting(np.full((1, 2, 1), np.inf)), refs_of(1))


def test_actions_between_frames_are_drawn_one_after_the_other() -> None:
    action = np.random.default_rng(0).normal(size=(2, 3, 2, 4)).astype(np.float32)
    intervals, flat = acting(action), acting(action.reshape(2, 6, 4))
    assert rows_html(intervals, refs_of(2)) == rows_html(flat, refs_of(2))


def test_without_a_valid_action_the_row_says_so() -> None:
    page = rows_html(acting(np.ones((1, 5, 2)), action_mask=np.zeros((1, 5, 2), bool)), refs_of(1))
    assert "(no action)" in page
    assert "(no action)" not in rows_html(batch_of(1), refs_of(1))


def test_cameras_and_dimensions_are_named() -> None:
    names: dict[str, Any] = {
        "cameras": {"frames": {"bridge": ("wrist",)}},
        "dimensions": {"bridge": ("x", "a/gripper")},
    }
    page = rows_html(acting(np.ones((1, 5, 2))), refs_of(1, frame_steps=(0, 5)), **names)
    assert "<figcaption>0 wrist</figcaption>" in page and "<figcaption>5 wrist</figcaption>" in page
    assert "<figcaption title='gripper'><span>gripper</span> 1</figcaption>" in page


def test_the_file_refers_to_nothing_else(tmp_path: Path) -> None:
    path = write_page(tmp_path / "new", "step", batch_of(2), refs_of(2), title="step <7>")
    page = path.read_text("utf-8")
    assert path.name == "step.html" and "step &lt;7&gt;" in page
    assert not re.findall(r"(?:src|href)='(?!data:)", page)


@pytest.mark.parametrize("make", [lambda x: np.moveaxis(x, -1, 1) / 255.0, lambda x: x.astype(np.float32) / 127.5 - 1])
def test_images_that_transforms_give_are_shown(make: Any) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    frames[:, 0, 0], frames[:, 0, 1] = 0, 255
    (pictures,) = find_pictures({"image": {"primary": make(frames)}, "state": np.zeros((2, 7))}, 2)
    assert pictures.key == "image/primary"
    assert np.abs(pictures.images[1][0].astype(int) - frames[1]).max() <= 1
