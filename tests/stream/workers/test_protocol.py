"""A batch is the same through a slot of shared memory as in memory of its own, whatever transforms make of it."""

from __future__ import annotations

import mmap
import os
import pickle
import resource
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grain
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream import make_loader
from stream.batch.maker import BatchMaker, Setup, apply_transforms
from stream.batch.spec import Batch, Decode
from stream.loader.mixed import MixedData
from stream.order.rows import ROW_TYPE, Rows
from stream.storage.errors import LimitError, RecordError
from stream.worker import pack
from stream.workers.protocol import Place, Reply, Request, SlotWriter, read_batch
from stream.workers.ring import Slot
from tests.fixtures.memory_limit import memory_limit
from tests.stream.index_root import open_data, write_dataset

ROWS = 6
Change = Callable[[Batch], Any]


class Apply(grain.transforms.Map):
    """A transform that calls a function of this module."""

    def __init__(self, change: Change) -> None:
        self._change = change

    def map(self, batch: Batch) -> Any:
        return self._change(batch)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("protocol")
    write_dataset(root, "arm", {"train": [[5, 4], [6, 9]]})
    write_dataset(root, "hand", {"train": [[8, 7]]}, action=("displacement",) * 4)
    return root


@pytest.fixture(scope="module")
def data(root: Path) -> MixedData:
    return open_data(root, {"arm": 1, "hand": 1})


def maker_of(data: MixedData, *changes: Change, rows: int = ROWS, decode: Decode = "host") -> BatchMaker:
    transforms = tuple(Apply(change) for change in changes)
    return BatchMaker(Setup(data.spec, transforms, seed=0, rank=0, rows=rows, threads=1, decode=decode))


class SlotOf:
    """A slot as trainer and worker share it, both in this process."""

    def __init__(self, maker: BatchMaker) -> None:
        self.maker = maker
        self.slot = Slot(maker.layout.nbytes)
        self.worker = self.new_worker()

    def new_worker(self) -> SlotWriter:
        return SlotWriter(os.dup(self.slot.fd), self.maker)

    def reply(self, rows: Rows, *, step: int = 0, worker: SlotWriter | None = None) -> Reply:
        np.frombuffer(self.slot.map, ROW_TYPE, len(rows))[:] = rows.packed()
        request = Request(step, self.slot.fd, self.slot.size, False)
        reply: Reply = pickle.loads(pack((worker or self.worker).make(request)))
        return reply

    def batch(self, rows: Rows, **options: Any) -> Batch:
        reply = self.reply(rows, **options)
        assert (reply.error, reply.failed) == ("", ())
        self.slot.refit()
        return read_batch(reply, self.slot.map)


def rows_of(data: MixedData, step: int) -> Rows:
    return data.plan.rows(data.plan.batch_samples(step, ROWS))


def assert_same(found: Any, expected: Any, where: str = "batch") -> None:
    """Compare values with their types, dtypes and shapes, in lists and dicts too."""
    assert type(found) is type(expected), where
    if isinstance(expected, Mapping):
        assert list(found) == list(expected), where
        for key, value in expected.items():
            assert_same(found[key], value, f"{where} {key}")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), where
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, f"{where} {number}")
    elif isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), where
        if isinstance(expected, np.ma.MaskedArray):
            np.testing.assert_array_equal(np.ma.getmaskarray(found), np.ma.getmaskarray(expected), err_msg=where)
            np.testing.assert_array_equal(found.data, expected.data, err_msg=where)
        else:
            np.testing.assert_array_equal(np.asarray(found), np.asarray(expected), err_msg=where)
    elif hasattr(expected, "numpy"):
        np.testing.assert_array_equal(found.numpy(), expected.numpy(), err_msg=where)
    else:
        assert found == expected, where


def keep(batch: Batch) -> Batch:
    return batch


def reorder(batch: Batch) -> Batch:
    return dict(reversed(batch.items()))


def drop(batch: Batch) -> Batch:
    return {key: batch[key] for key in ("step", "language", "frames")}


def empty(_: Batch) -> Batch:
    return {}


def rename(batch: Batch) -> Batch:
    return {"image": batch.pop("frames"), "text": batch.pop("language"), **batch}


def swap(batch: Batch) -> Batch:
    return {**batch, "episode": batch["step"], "step": batch["episode"]}


def swap_views(batch: Batch) -> Batch:
    return {**batch, "episode": batch["step"][:], "step": batch["episode"][:]}


def alias(batch: Batch) -> Batch:
    return {**batch, "again": batch["frames"], "episode": batch["step"]}


def write_in_place(batch: Batch) -> Batch:
    batch["frames"] //= 2
    batch["action"][:, 0] = -1
    batch["language"][0] = "said otherwise"
    return batch


def replace(batch: Batch) -> Batch:
    return {**batch, "frames": 255 - batch["frames"], "state": batch["state"] * 2}


def replace_by_others(batch: Batch) -> Batch:
    return {**batch, "episode": batch["step"] + batch["episode"], "step": batch["episode"][::-1]}


def replace_by_views(batch: Batch) -> Batch:
    frames = batch["frames"]
    return {**batch, "frames": frames[..., ::-1], "first": frames[:, 0], "crop": frames[:, :, 2:8, 3:9]}


def keep_views_of_what_goes(batch: Batch) -> Batch:
    action = batch.pop("action")
    return {**batch, "now": action[:, 0], "action": np.zeros_like(action), "last": action[:, -1]}


def keep_under_another_key(batch: Batch) -> Batch:
    return {**batch, "episode": batch["episode"] * 3, "before": batch["episode"]}


def other_shapes(batch: Batch) -> Batch:
    channels_first = np.moveaxis(batch["frames"], -1, 2)
    return {**batch, "frames": channels_first, "state": batch["state"][:, :1], "step": batch["step"][:, None]}


def other_strides(batch: Batch) -> Batch:
    step = batch["step"]
    return {
        **batch,
        "broadcast": np.broadcast_to(step, (3, len(step))),
        "fortran": np.asfortranarray(batch["action"]),
        "every other": step[::2],
        "backwards": step[::-1],
    }


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
        "step": batch["step"] * 0,
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


def larger(batch: Batch) -> Batch:
    count = 100_000 * (1 + int(batch["sample"][0]) % 3)
    return {**batch, "large": np.arange(count), "frames": 255 - batch["frames"], "more": np.ones(count // 2, np.uint8)}


CHANGES: list[Change] = [
    keep,
    reorder,
    drop,
    empty,
    rename,
    swap,
    swap_views,
    alias,
    write_in_place,
    replace,
    replace_by_others,
    replace_by_views,
    keep_views_of_what_goes,
    keep_under_another_key,
    other_shapes,
    other_strides,
    other_dtypes,
    structured,
    sizes_of_none,
    masked,
    objects,
    no_arrays,
    nested,
    tensors,
    change_in_place,
    larger,
]


ENCODED = [keep, reorder, swap, swap_views, replace_by_others, masked, no_arrays, tensors]
"""Those that ask for no frames."""


@pytest.mark.parametrize(
    ("change", "decode"),
    [*((change, "host") for change in CHANGES), *((change, "device") for change in ENCODED)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_what_a_transform_returns_comes_through_a_slot(data: MixedData, change: Change, decode: Decode) -> None:
    maker = maker_of(data, change, decode=decode)
    slot = SlotOf(maker)
    for step in range(4):
        rows = rows_of(data, step)
        expected, _ = maker.make(step, rows)
        assert_same(slot.batch(rows, step=step), expected)


def each_in_turn(batch: Batch) -> Any:
    """Apply a different change at every step."""
    return CHANGES[int(batch["sample"][0]) // ROWS % len(CHANGES)](batch)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_processes_and_threads_give_the_same(root: Path, data: MixedData, num_workers: int) -> None:
    more: dict[str, Any] = {"num_workers": num_workers, "transforms": [Apply(each_in_turn)]}
    loader = make_loader(root, {"arm": 1, "hand": 1}, batch_size=ROWS, **more)
    maker, kept = maker_of(data, each_in_turn), []
    iterator = iter(loader)
    for step in range(2 * len(CHANGES)):
        expected, _ = maker.make(step, rows_of(data, step))
        kept.append((next(iterator), expected))
    iterator.close()
    for found, expected in kept:
        assert_same(found, expected)


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


@settings(max_examples=150)
@given(recipes=st.lists(RECIPE, min_size=1, max_size=2), keeps=st.booleans())
def test_any_mix_of_arrays_and_views_comes_through_a_slot(
    data: MixedData, recipes: list[dict[str, tuple[str, str]]], keeps: bool
) -> None:
    def mixed(batch: Batch) -> Batch:
        for recipe in recipes:
            made = {key: WAYS[way](batch[source]) for key, (source, way) in recipe.items() if is_array(batch, source)}
            batch = {**batch, **made} if keeps else made
        return batch

    maker = maker_of(data, mixed)
    slot = SlotOf(maker)
    for step in range(3):
        expected, _ = maker.make(step, rows_of(data, step))
        assert_same(slot.batch(rows_of(data, step)), expected)


def is_array(batch: Batch, key: str) -> bool:
    return isinstance(batch.get(key), np.ndarray) and len(batch[key]) == ROWS


def test_arrays_of_the_layout_lie_in_the_slot_and_are_not_copied(data: MixedData) -> None:
    for change, replaced in ((rename, set()), (swap_views, set()), (replace, {"frames", "state"})):
        slot = SlotOf(maker_of(data, change))
        reply = slot.reply(rows_of(data, 0))
        places = {key: value for key, value in reply.batch.items() if isinstance(value, Place)}
        assert len(places) == len(slot.maker.layout.offsets)
        assert {key for key, place in places.items() if place.offset >= slot.maker.layout.nbytes} == replaced
        assert len(pickle.dumps(reply)) < 2000


def test_a_slot_grows_for_a_larger_batch_and_stays_as_large(data: MixedData) -> None:
    slot = SlotOf(maker_of(data, larger))
    before = slot.slot.size
    sizes = []
    for step in (0, 2, 1, 0):
        slot.batch(rows_of(data, step))
        sizes.append(slot.slot.size)
    assert sizes[0] > before + 800_000
    assert sizes == sorted(sizes)
    assert os.fstat(slot.slot.fd).st_size == sizes[-1]


def test_a_slot_that_another_worker_enlarged_is_mapped_again(data: MixedData) -> None:
    slot = SlotOf(maker_of(data, larger))
    other = slot.new_worker()
    expected, _ = slot.maker.make(1, rows_of(data, 1))
    for worker in (slot.worker, other, slot.worker):
        assert_same(slot.batch(rows_of(data, 1), worker=worker), expected)


def huge(batch: Batch) -> Batch:
    return {**batch, "huge": np.broadcast_to(np.uint8(0), 1 << 45)}


def test_a_batch_that_memory_does_not_hold_is_an_error(data: MixedData) -> None:
    slot = SlotOf(maker_of(data, huge))
    with memory_limit():
        reply = slot.reply(rows_of(data, 0))
    assert "bytes does not fit into memory (Cannot allocate memory); take a smaller batch_size" in reply.error
    assert os.fstat(slot.slot.fd).st_size == slot.slot.size


def lock(batch: Batch) -> Batch:
    return {**batch, "lock": threading.Lock(), "frames": 255 - batch["frames"]}


class Stubborn:
    """A value that cannot be pickled, for a reason of its own."""

    def __reduce__(self) -> Any:
        raise RuntimeError("I stay")


def stubborn(batch: Batch) -> Batch:
    return {**batch, "stubborn": Stubborn()}


@pytest.mark.parametrize(("change", "told"), [(lock, "cannot pickle '_thread.lock'"), (stubborn, "I stay")])
def test_what_cannot_be_sent_is_an_error_of_the_batch(data: MixedData, change: Change, told: str) -> None:
    reply = SlotOf(maker_of(data, change)).reply(rows_of(data, 0))
    assert reply.error.startswith(f"the batch cannot be sent to the trainer: {told}")
    assert reply.batch == {}


def fail(_: Batch) -> Batch:
    raise ValueError("no such thing")


def forget(_: Batch) -> None:
    return None


@pytest.mark.parametrize(
    ("change", "told"),
    [(fail, "ValueError: no such thing"), (forget, "returned NoneType, expected the batch as a dict")],
)
def test_a_transform_that_fails_is_told_with_its_place(data: MixedData, change: Change, told: str) -> None:
    reply = SlotOf(maker_of(data, change)).reply(rows_of(data, 0))
    assert told in reply.error
    assert "Traceback" in reply.error
    assert (reply.batch, reply.failed) == ({}, ())


def test_the_work_of_a_batch_is_told(data: MixedData) -> None:
    reply = SlotOf(maker_of(data)).reply(rows_of(data, 0))
    assert all(amount > 0 for amount in vars(reply.work).values())


def test_rows_that_cannot_be_read_are_told_and_no_transform_is_applied(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path, "arm", {"train": [[5, 4], [6, 9]]})
    changed = open_data(tmp_path, {"arm": 1})
    slot = SlotOf(maker_of(changed, fail))
    rows = rows_of(changed, 0)
    bad = set(np.flatnonzero(rows.record >= 5).tolist())
    assert 0 < len(bad) < ROWS
    for path in folder.glob("train/*-00001-of-*.arrayrecord"):
        content = path.read_bytes()
        path.write_bytes(content[:100] + bytes(len(content) - 100))
    reply = slot.reply(rows)
    assert [row for row, _ in reply.failed] == sorted(bad)
    assert (reply.batch, reply.error) == ({}, "")
    for row, error in reply.failed:
        assert isinstance(error, RecordError)
        assert (error.dataset, error.shard, error.sample) == ("arm", "train-00001-of-00002", rows.sample[row])


def test_a_limit_on_open_files_is_no_error_of_the_batch(data: MixedData) -> None:
    slot = SlotOf(maker_of(data))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(LimitError, match=r"arrayrecord cannot be opened: Too many open files; raise the limit"):
            slot.reply(rows_of(data, 0))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert slot.batch(rows_of(data, 0))


def test_a_slot_has_room_for_the_rows_and_the_arrays(data: MixedData) -> None:
    for rows in (1, 5, 64):
        maker = maker_of(data, rows=rows)
        arrays = maker.layout.arrays(mmap.mmap(-1, maker.layout.nbytes))
        assert min(maker.layout.offsets.values()) >= rows * ROW_TYPE.itemsize
        assert {name: array.shape[0] for name, array in arrays.items()} == dict.fromkeys(maker.assembler.fields, rows)


class Draw(grain.transforms.RandomMap):
    def random_map(self, batch: Batch, generator: np.random.Generator) -> Batch:
        return {**batch, "drawn": generator.random(3)}


def test_random_transforms_draw_by_seed_step_and_rank() -> None:
    def drawn(**options: int) -> list[float]:
        given = {"seed": 1, "step": 2, "rank": 3, **options}
        return apply_transforms([Draw(), Draw()], {}, **given)["drawn"].tolist()

    found = [drawn(), drawn(seed=2), drawn(step=3), drawn(rank=4), drawn(seed=-1)]
    assert len({tuple(each) for each in found}) == 5
    assert drawn() == found[0]


def with_dicts(batch: Batch) -> Batch:
    return {"image": {"base": batch["frames"], "half": {"small": batch["frames"][:, :, ::2]}}, "texts": ["a"] * ROWS}


def test_arrays_in_dicts_lie_in_the_slot(data: MixedData) -> None:
    slot = SlotOf(maker_of(data, with_dicts))
    expected, _ = slot.maker.make(0, rows_of(data, 0))
    assert len(pickle.dumps(slot.reply(rows_of(data, 0)))) < 2000
    batch = slot.batch(rows_of(data, 0))
    np.testing.assert_array_equal(batch["image"]["base"], expected["image"]["base"])
    np.testing.assert_array_equal(batch["image"]["half"]["small"], expected["image"]["half"]["small"])
    assert batch["texts"] == ["a"] * ROWS
