"""A batch is the same through a slot of shared memory as in memory of its own, whatever transforms make of it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream import make_loader
from stream.batch.spec import Batch
from stream.loader.open_mixture import OpenMixture
from stream.sample.frames import Decode
from stream.workers.protocol import ArrayLocation
from tests.fixtures.parameters import long_but
from tests.stream.workers.shared_slot import ROWS, Apply, Change, SlotOf, assert_same, larger, maker_of, rows_of


def keep(batch: Batch) -> Batch:
    return batch


def reorder(batch: Batch) -> Batch:
    return dict(reversed(batch.items()))


def empty(_: Batch) -> Batch:
    return {}


def rename(batch: Batch) -> Batch:
    return {"image": batch.pop("frames"), "text": batch.pop("language"), **batch}


def swap_views(batch: Batch) -> Batch:
    return {**batch, "episode": batch["step"][:], "step": batch["episode"][:]}


def write_in_place(batch: Batch) -> Batch:
    batch["frames"] //= 2
    batch["action"][:, 0] = -1
    batch["language"][0] = "said otherwise"
    return batch


def replace(batch: Batch) -> Batch:
    return {**batch, "frames": 255 - batch["frames"], "state": batch["state"] * 2}


def replace_by_others(batch: Batch) -> Batch:
    step, episode = batch["step"], batch["episode"]
    return {**batch, "episode": step, "step": episode[::-1], "offset": step + episode, "again": batch["frames"]}


def replace_by_views(batch: Batch) -> Batch:
    frames = batch["frames"]
    return {**batch, "frames": frames[..., ::-1], "first": frames[:, 0], "crop": frames[:, :, 2:8, 3:9]}


def keep_views_of_what_goes(batch: Batch) -> Batch:
    action = batch.pop("action")
    return {**batch, "now": action[:, 0], "action": np.zeros_like(action), "last": action[:, -1]}


def other_shapes(batch: Batch) -> Batch:
    channels_first = np.moveaxis(batch["frames"], -1, 2)
    return {**batch, "frames": channels_first, "state": batch["state"][:, :1], "step": batch["step"][:, None]}


def other_strides(batch: Batch) -> Batch:
    step = batch["step"]
    wide, fortran = np.broadcast_to(step, (3, len(step))), np.asfortranarray(batch["action"])
    return {**batch, "broadcast": wide, "fortran": fortran, "every other": step[::2], "backwards": step[::-1]}


def other_dtypes(batch: Batch) -> Batch:
    step = batch["step"]
    return {
        **batch,
        "action": batch["action"].astype(ml_dtypes.bfloat16),
        "state": batch["state"].astype(np.float16),
        "frames": batch["frames"].astype(np.float32) / 255,
        "episode": step.astype(">i4"),
        "small": step.astype(ml_dtypes.int4),
        "eight": step.astype(ml_dtypes.float8_e4m3fn),
        "complex": step + 1j,
        "date": step.astype("M8[s]"),
        "letters": np.array(["a", "bcd"]),
        "bytes": np.array([b"a", b"bcd"]),
        "flags": step > 2,
    }


def structured(batch: Batch) -> Batch:
    kind = np.dtype([("step", "i8"), ("action", "f4", batch["action"].shape[1:]), ("flag", "?")], align=True)
    records = np.zeros(len(batch["step"]), kind)
    records["step"], records["action"] = batch["step"], batch["action"]
    return {**batch, "records": records, "episode": records["step"]}


def sizes_of_none(batch: Batch) -> Batch:
    return {**batch, "nothing": np.zeros((0, 5), np.float32), "single": np.array(7.5), "state": batch["state"][:0]}


def masked(batch: Batch) -> Batch:
    action = np.ma.masked_array(batch["action"], ~batch["action_mask"])
    return {**batch, "masked": action, "action": batch["action"] + 1}


def objects(batch: Batch) -> Batch:
    named = np.array([{"step": int(step)} for step in batch["step"]] + [None], object)
    mixed = np.zeros(2, [("a", "i4"), ("b", object)])
    return {**batch, "objects": named, "mixed": mixed, "texts": np.array(["a", "é"], np.dtypes.StringDType())}


def no_arrays(batch: Batch) -> Batch:
    return {**batch, "count": 3, "mean": np.float32(0.5), "none": None, "name": "é", "bytes": b"bytes", "set": {1, 2}}


def nested(batch: Batch) -> Batch:
    parts = {"steps": (batch["step"][:2], [batch["episode"]]), "matrix": np.matrix(batch["state"])}
    return {
        **batch,
        "parts": parts,
        "step": 0 * batch["step"],
        "episode": -batch["episode"],
        "state": batch["state"] + 1,
    }


def tensors(batch: Batch) -> Batch:
    import torch

    return {**batch, "action": torch.from_numpy(batch["action"]), "step": torch.arange(5, dtype=torch.bfloat16).float()}


def change_in_place(batch: Batch) -> Batch:
    batch["step"].shape = (2, 3)
    batch["state"].dtype = np.dtype("u4")
    batch["episode"].setflags(write=False)
    return batch


CHANGES: list[Change] = [
    *(keep, reorder, empty, rename, swap_views, write_in_place, replace, replace_by_others, replace_by_views),
    *(keep_views_of_what_goes, other_shapes, other_strides, other_dtypes, structured, sizes_of_none, masked, objects),
    *(no_arrays, nested, tensors, change_in_place, larger),
]
ENCODED = [keep, reorder, swap_views, masked, no_arrays, tensors]
"""Those that ask for no frames."""


@pytest.mark.parametrize(
    ("change", "decode"),
    [*((change, "host") for change in CHANGES), *((change, "device") for change in ENCODED)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_what_a_transform_returns_comes_through_a_slot(data: OpenMixture, change: Change, decode: Decode) -> None:
    maker = maker_of(data, change, decode=decode)
    slot = SlotOf(maker)
    for step in range(4):
        rows = rows_of(data, step)
        expected = maker.make(step, rows).batch
        assert_same(slot.batch(rows, step=step), expected)


def each_in_turn(batch: Batch) -> Any:
    """Apply a different change at every step."""
    return CHANGES[int(batch["sample"][0]) // ROWS % len(CHANGES)](batch)


@pytest.mark.parametrize("num_workers", long_but([0], [0, 2]))
def test_processes_and_threads_give_the_same(root: Path, data: OpenMixture, num_workers: int) -> None:
    more: dict[str, Any] = {"num_workers": num_workers, "transforms": [Apply(each_in_turn)]}
    loader = make_loader(root, {"arm": 1, "hand": 1}, batch_size=ROWS, **more)
    maker, kept = maker_of(data, each_in_turn), []
    iterator = iter(loader)
    for step in range(2 * len(CHANGES)):
        expected = maker.make(step, rows_of(data, step)).batch
        kept.append((next(iterator), expected))
    iterator.close()
    for result, expected in kept:
        assert_same(result, expected)


SOURCES = ("sample", "episode", "step", "offset")
KEYS = (*SOURCES, "state", "new", "other")
WAYS: dict[str, Callable[[np.ndarray], Any]] = {
    "itself": lambda a: a,
    "view": lambda a: a[:],
    "backwards": lambda a: a[::-1],
    "part": lambda a: a[1:4],
    "fresh": lambda a: a * 3 + 1,
    "listed view": lambda a: [a[2:]],
    "masked view": lambda a: np.ma.masked_array(a, a % 2 == 0),
    "bits": lambda a: a.view("u8"),
}
RECIPE = st.dictionaries(
    st.sampled_from(KEYS), st.tuples(st.sampled_from(SOURCES), st.sampled_from(list(WAYS))), min_size=1
)


@pytest.mark.long
@settings(max_examples=150)
@given(recipes=st.lists(RECIPE, min_size=1, max_size=2), keeps=st.booleans())
def test_any_mix_of_arrays_and_views_comes_through_a_slot(
    data: OpenMixture, recipes: list[dict[str, tuple[str, str]]], keeps: bool
) -> None:
    def mixed(batch: Batch) -> Batch:
        for recipe in recipes:
            mixed_batch = {
                key: WAYS[way](batch[source]) for key, (source, way) in recipe.items() if is_array(batch, source)
            }
            batch = {**batch, **mixed_batch} if keeps else mixed_batch
        return batch

    maker = maker_of(data, mixed)
    slot = SlotOf(maker)
    for step in range(3):
        expected = maker.make(step, rows_of(data, step)).batch
        assert_same(slot.batch(rows_of(data, step)), expected)


def is_array(batch: Batch, key: str) -> bool:
    return isinstance(batch.get(key), np.ndarray) and len(batch[key]) == ROWS


def test_arrays_of_the_layout_lie_in_the_slot_and_are_not_copied(data: OpenMixture) -> None:
    for change, replaced in ((rename, set()), (swap_views, set()), (replace, {"frames", "state"})):
        slot = SlotOf(maker_of(data, change))
        reply = slot.reply(rows_of(data, 0))
        locations = {key: value for key, value in reply.batch.items() if isinstance(value, ArrayLocation)}
        assert len(locations) == len(slot.maker.layout.offsets)
        assert {key for key, location in locations.items() if location.offset >= slot.maker.layout.nbytes} == replaced
        assert len(pickle.dumps(reply)) < 2000


def with_dicts(batch: Batch) -> Batch:
    return {"image": {"base": batch["frames"], "half": {"small": batch["frames"][:, :, ::2]}}, "texts": ["a"] * ROWS}


def test_arrays_in_dicts_lie_in_the_slot(data: OpenMixture) -> None:
    slot = SlotOf(maker_of(data, with_dicts))
    expected = slot.maker.make(0, rows_of(data, 0)).batch
    assert len(pickle.dumps(slot.reply(rows_of(data, 0)))) < 2000
    batch = slot.batch(rows_of(data, 0))
    np.testing.assert_array_equal(batch["image"]["base"], expected["image"]["base"])
    np.testing.assert_array_equal(batch["image"]["half"]["small"], expected["image"]["half"]["small"])
    assert batch["texts"] == ["a"] * ROWS
