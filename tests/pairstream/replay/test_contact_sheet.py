"""The picture of a batch shows its frames, what they are, and the actions."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pairstream.replay.contact_sheet import ROWS_PER_PAGE, draw_sheets, find_pictures, write_sheets
from stream.order.reference import SampleRef

RED = (200, 20, 30)
CURVE = (20, 90, 180)


def refs_of(count: int, **fields: Any) -> list[SampleRef]:
    """Return the origins of some rows, of the first steps of an episode."""
    texts = {"dataset": "bridge", "split": "train", "source_file": "bridge-train.tfrecord-00000-of-00002"}
    shared = {**texts, "episode_id": "x", "shard": "train-00000-of-00002", "language": "pick it up", "episode": 3}
    shared |= {"offset": 5, "epoch": 0}
    return [SampleRef(**{**shared, "sample": row, "step": row, "record": row, **fields}) for row in range(count)]


def colour(row: int, frame: int) -> tuple[int, int, int]:
    """Return a colour that no text, paper or plot has."""
    return (10 + row % 200, 60 + 30 * frame, 7 + row // 200)


def batch_of(rows: int, *, frames: int = 2, size: tuple[int, int] = (64, 64), **more: Any) -> dict[str, Any]:
    pixels = np.empty((rows, frames, *size, 3), np.uint8)
    for row in range(rows):
        for frame in range(frames):
            pixels[row, frame] = colour(row, frame)
    return {"frames": pixels, "sample": np.arange(rows), **more}


def colours_of(sheet: Image.Image) -> Counter[tuple[int, int, int]]:
    """Count the pixels of each colour."""
    return Counter({colour: count for count, colour in sheet.getcolors(1 << 24)})  # type: ignore[misc, union-attr]


def only(batch: dict[str, Any], refs: list[SampleRef], **arguments: Any) -> Image.Image:
    (sheet,) = draw_sheets(batch, refs, **arguments)
    return sheet


@pytest.mark.parametrize("rows", [1, 3, 8, 64])
@pytest.mark.parametrize(("frames", "size"), [(1, (64, 64)), (2, (256, 256)), (2, (48, 64)), (6, (64, 64))])
def test_every_frame_of_every_row_is_there_in_one_size(rows: int, frames: int, size: tuple[int, int]) -> None:
    colours: Counter[tuple[int, int, int]] = Counter()
    for sheet in draw_sheets(batch_of(rows, frames=frames, size=size), refs_of(rows)):
        colours += colours_of(sheet)
    shown = [colours[colour(row, frame)] for row in range(rows) for frame in range(frames)]
    assert len(set(shown)) == 1
    assert shown[0] >= 48 * 48


def test_the_frames_of_a_row_stand_side_by_side_in_order() -> None:
    sheet = np.asarray(only(batch_of(1), refs_of(1)))
    first, second = ((sheet == colour(0, frame)).all(-1).nonzero() for frame in (0, 1))
    assert first[0].min() == second[0].min()
    assert first[1].max() < second[1].min()


def test_a_row_names_its_delay() -> None:
    batches = [batch_of(2), *(batch_of(2, action_delay=np.array([3, last])) for last in (3, 2))]
    plain, delayed, other = (np.asarray(only(batch, refs_of(2))) for batch in batches)
    assert (plain != delayed).any()
    changed_columns = (delayed != other).any(axis=(0, 2)).nonzero()[0]
    # Only the second row, in the right half, has another number.
    assert changed_columns.min() > delayed.shape[1] / 2


def test_frames_that_a_row_does_not_have_are_left_blank() -> None:
    mask = np.array([[True, True], [True, False]])
    sheet = only(batch_of(2, frames_mask=mask), refs_of(2))
    assert colours_of(sheet)[colour(1, 0)]
    assert not colours_of(sheet)[colour(1, 1)]


@pytest.mark.long
def test_a_large_batch_takes_several_pages_without_losing_a_row(tmp_path: Path) -> None:
    batch, refs = batch_of(256, size=(8, 8)), refs_of(256)
    paths = write_sheets(tmp_path, "step", batch, refs, title="a title")
    assert [path.name for path in paths] == [f"step-{page}.png" for page in (1, 2, 3, 4)]
    for page, path in enumerate(paths):
        with Image.open(path) as sheet:
            assert sheet.height <= 2500
            colours = colours_of(sheet)
        rows = [row for row in range(256) if colours[colour(row, 0)]]
        assert rows == list(range(page * ROWS_PER_PAGE, (page + 1) * ROWS_PER_PAGE))


def test_the_file_is_the_picture_that_was_drawn(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    batch = {"frames": rng.integers(0, 256, (5, 2, 64, 64, 3), np.uint8)}
    (path,) = write_sheets(tmp_path / "new", "step", batch, refs_of(5))
    assert [file.name for file in path.parent.iterdir()] == ["step.png"]
    with Image.open(path) as written:
        written.load()
        assert written.format == "PNG"
        np.testing.assert_array_equal(np.asarray(written), np.asarray(only(batch, refs_of(5))))


def test_only_rows_that_were_replaced_are_marked_red() -> None:
    batch = batch_of(4)
    assert not colours_of(only(batch, refs_of(4)))[RED]
    one_row, two_rows = (colours_of(only(batch, refs_of(4), replaced=rows))[RED] for rows in ({1}, {1, 3}))
    assert 0 < one_row < two_rows


def test_other_instructions_give_another_picture() -> None:
    batch = batch_of(2)
    sheets = [only(batch, refs_of(2, language=text)).tobytes() for text in ("pick", "put", "", "红", "绿")]
    assert len(set(sheets)) == 5


def test_a_long_instruction_stays_in_its_cell() -> None:
    plain, long = (only(batch_of(2), refs_of(2, language=text)) for text in ("pick", "WWWW" * 100))
    assert long.size == plain.size
    for column in (0, plain.width // 2):
        edge = np.asarray(long)[:, column : column + 5]
        assert (edge == 255).all(-1)[30:].all()


def action_pixels(action: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the position of the curves of the only row."""
    sheet = np.asarray(only(batch_of(1, action=action[None], action_mask=mask[None]), refs_of(1)))
    return (sheet == CURVE).all(-1)


def test_a_curve_is_drawn_for_each_dimension_that_the_row_has() -> None:
    action = np.tile(np.linspace(-1, 1, 5, dtype=np.float32)[:, None], (1, 4))
    counts = [int(action_pixels(action, np.tile(np.arange(4) < dims, (5, 1))).sum()) for dims in range(5)]
    assert counts[0] == 0
    assert counts == sorted(set(counts))


def test_a_rising_action_rises_and_steps_beyond_the_pair_are_left_out() -> None:
    action = np.array([[0], [1], [2], [3], [-9]], np.float32)
    mask = np.array([[True]] * 4 + [[False]])
    rows, columns = action_pixels(action, mask).nonzero()
    assert rows[columns.argmin()] > rows[columns.argmax()]
    middle = action_pixels(np.zeros((5, 1), np.float32), mask).nonzero()[0]
    assert rows.max() <= middle.max()


def test_a_reduced_action_is_a_bar_up_or_down_from_the_middle() -> None:
    mask = np.ones(1, bool)
    up, zero, down = (action_pixels(np.array([v], np.float32), mask).nonzero()[0] for v in (2.0, 0.0, -2.0))
    assert up.min() < zero.min() <= up.max()
    assert down.min() <= zero.max() < down.max()


def test_values_that_are_not_numbers_are_said_in_red() -> None:
    action = np.array([[np.nan, 1, 1e30], [np.inf, 1, 0], [1, 1, -1e-30]], np.float32)
    batch = batch_of(1, action=action[None], action_mask=np.ones((1, 3, 3), bool))
    assert any(red > green + 100 and red > blue + 100 for red, green, blue in colours_of(only(batch, refs_of(1))))


def test_without_actions_nothing_is_kept_free_for_them() -> None:
    acting = batch_of(2, action=np.ones((2, 5, 3), np.float32), action_mask=np.ones((2, 5, 3), bool))
    assert only(batch_of(2), refs_of(2)).height < only(acting, refs_of(2)).height


def test_rows_with_bad_values_are_marked_red_and_the_steps_of_nan_too() -> None:
    action = np.ones((2, 5, 3), np.float32)
    batch = batch_of(2, action=action, action_mask=np.ones(action.shape, bool))
    plain = colours_of(only(batch, refs_of(2)))[RED]
    marked = colours_of(only(batch, refs_of(2), faults={1: ["action: NaN in x"]}))[RED]
    action[1, 2, 0] = np.nan
    assert plain == 0
    assert 0 < marked < colours_of(only(batch, refs_of(2), faults={1: ["action: NaN in x"]}))[RED]


def test_actions_between_frames_are_drawn_one_after_the_other() -> None:
    action = np.random.default_rng(0).normal(size=(2, 3, 2, 4)).astype(np.float32)
    mask = np.ones(action.shape, bool)
    mask[:, 1, 1] = False
    flat = batch_of(2, action=action.reshape(2, 6, 4), action_mask=mask.reshape(2, 6, 4))
    intervals = batch_of(2, action=action, action_mask=mask)
    assert only(intervals, refs_of(2)).tobytes() == only(flat, refs_of(2)).tobytes()
    assert colours_of(only(intervals, refs_of(2)))[CURVE] > 0


def test_cameras_and_dimensions_are_named() -> None:
    action = np.ones((1, 5, 2), np.float32)
    batch = batch_of(1, action=action, action_mask=np.ones(action.shape, bool))
    names = {"cameras": {"frames": {"bridge": ("wrist",)}}, "dimensions": {"bridge": ("x", "gripper")}}
    choices: list[Any] = [{}, *({key: names[key]} for key in names)]
    assert len({only(batch, refs_of(1), **arguments).tobytes() for arguments in choices}) == 3


def test_one_frame_is_one_step() -> None:
    sheets = [only(batch_of(1, frames=1), refs_of(1, offset=offset)).tobytes() for offset in (0, 1)]
    assert len(set(sheets)) == 2


@pytest.mark.parametrize("make", [lambda x: np.moveaxis(x, -1, 1) / 255.0, lambda x: x.astype(np.float32) / 127.5 - 1])
def test_images_that_transforms_give_are_shown(make: Any) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    frames[:, 0, 0], frames[:, 0, 1] = 0, 255
    (pictures,) = find_pictures({"image": {"primary": make(frames)}, "state": np.zeros((2, 7))}, 2)
    assert pictures.key == "image/primary"
    assert np.abs(pictures.images[1][0].astype(int) - frames[1]).max() <= 1
