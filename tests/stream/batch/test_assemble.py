"""Batches are assembled of the records that their rows name, and a record that cannot be read fails alone."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import simplejpeg

from convert.shard.record_file import encode_record
from stream.base.errors import LimitError, RecordError, RingError
from stream.base.machine import default_max_open
from stream.batch.assemble import Assembler
from stream.batch.result import BatchResult
from stream.format.names import decode_record
from stream.format.record_file import RecordFile
from stream.loader.open_mixture import OpenMixture
from stream.order.rows import Rows
from tests.fixtures.datasets.rewritten_records import rewrite_records
from tests.fixtures.faults.memory_limit import memory_limit
from tests.fixtures.faults.open_files import open_files
from tests.stream.index_root import change_table, encoded_frame, open_data, with_values, write_dataset

TRAIN = [[5, 1, 4], [], [6, 9], [3, 3], [8]]
NAMES = ("arm", "eye")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return two datasets, with two and three frames a record; tests must not write to them."""
    root = tmp_path_factory.mktemp("batch")
    write_dataset(root, "arm", {"train": TRAIN})
    write_dataset(root, "eye", {"train": TRAIN}, action=(), state=0, frame_offsets=(0, 1, 2))
    return root


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a dataset to damage."""
    return write_dataset(tmp_path, "arm", {"train": TRAIN})


def data_of(root: Path, names: tuple[str, ...] = NAMES, **options: Any) -> OpenMixture:
    return open_data(root, dict.fromkeys(names, 1), **options)


def all_rows(data: OpenMixture) -> Rows:
    """Return a batch with every record, in a shuffled order."""
    return data.plan.rows(np.arange(2 * sum(data.sizes.values())))


def assembled(assembler: Assembler, rows: Rows) -> tuple[dict[str, np.ndarray], BatchResult]:
    """Assemble a batch in memory that held other values."""
    out = assembler.empty(len(rows))
    for values in out.values():
        values[...] = 77
    return out, assembler.assemble(rows, out)


def path_of(folder: Path, shard: int) -> Path:
    return folder / "train" / f"train-{shard:05d}-of-00005.arrayrecord"


def failed_records(data: OpenMixture, done: BatchResult, rows: Rows) -> set[tuple[str, int]]:
    """Return shard and record of the rows that failed; check that each error names its row."""
    assert [row for row, _ in done.failed] == sorted({row for row, _ in done.failed})
    for row, error in done.failed:
        assert (error.dataset, error.split, error.sample) == ("arm", "train", rows.sample[row])
    return {(error.shard, error.record) for _, error in done.failed}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("names", [NAMES, ("arm",), ("eye",)])
def test_frames_are_those_of_the_steps_of_each_row(root: Path, names: tuple[str, ...], threads: int) -> None:
    data = data_of(root, names)
    rows = all_rows(data)
    out, done = assembled(Assembler(data.spec, threads=threads), rows)
    assert not done.failed
    np.testing.assert_array_equal(out["sample"], rows.sample)
    np.testing.assert_array_equal(out["dataset"], rows.member)
    assert ("frames_mask" in out) == (len(names) == 2)
    seen = set()
    for row, ref in enumerate(data.describe(rows)):
        offsets = (0, 2) if ref.dataset == "arm" else (0, 1, 2)
        expected = np.zeros(out["frames"].shape[1:], np.uint8)
        for frame, offset in enumerate(offsets):
            jpeg = encoded_frame(ref.dataset, "train", ref.episode, ref.step + offset)
            expected[frame] = simplejpeg.decode_jpeg(jpeg)
        np.testing.assert_array_equal(out["frames"][row], expected)
        if len(names) == 2:
            assert out["frames_mask"][row].tolist() == [i < len(offsets) for i in range(3)]
        seen.add((ref.dataset, ref.shard, ref.record))
    assert len(seen) == sum(data.sizes.values())


NOTHING: dict[str, Any] = {"action": None, "state": None, "language": None}
"""Arguments of batches with frames alone."""


@pytest.mark.parametrize("options", [{}, NOTHING, {"action": None}, {"frames": {"times": True}}], ids=str)
def test_all_of_the_memory_of_a_batch_is_written(root: Path, options: dict[str, Any]) -> None:
    data = data_of(root, **options)
    rows = all_rows(data)
    assembler, batches = Assembler(data.spec), []
    for byte in (0x4D, 0xAA):
        batches.append(assembler.empty(len(rows)))
        for values in batches[-1].values():
            values.view(np.uint8)[...] = byte
        assembler.assemble(rows, batches[-1])
    for name, values in batches[0].items():
        np.testing.assert_array_equal(values, batches[1][name], err_msg=name)


def handles(folder: Path) -> list[str]:
    """Return the files of a folder that this process has open."""
    return [path for path in open_files() if path.startswith(str(folder))]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("max_open", [1, 3])
def test_batches_are_the_same_however_few_files_stay_open(root: Path, max_open: int, threads: int) -> None:
    data = data_of(root)
    rows = all_rows(data)
    expected, _ = assembled(Assembler(data.spec), rows)
    few = Assembler(data.spec, max_open=max_open, threads=threads)
    for _ in range(2):
        batch, done = assembled(few, rows)
        assert not done.failed
        np.testing.assert_array_equal(batch["frames"], expected["frames"])
        assert len([path for path in handles(root) if path.endswith(".arrayrecord")]) <= max_open


def test_files_close_with_their_assembler(root: Path) -> None:
    data = data_of(root)
    # Those that errors of other tests still hold.
    gc.collect()
    before = len(handles(root))
    assembler = Assembler(data.spec)
    assembled(assembler, all_rows(data))
    assert len(handles(root)) > before
    del assembler
    assert len(handles(root)) == before


def test_threads_share_the_files(root: Path) -> None:
    data = data_of(root)
    rows = all_rows(data)
    assembler = Assembler(data.spec, max_open=2)
    expected, _ = assembled(Assembler(data.spec), rows)

    def make(seed: int) -> bool:
        start = seed * 7 % (len(rows) - 10)
        out, done = assembled(assembler, rows.cut(start, start + 10))
        return not done.failed and bool((out["frames"] == expected["frames"][start : start + 10]).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(make, range(100)))


SECOND = "train-00002-of-00005"
SMALLER = simplejpeg.encode_jpeg(np.zeros((8, 16, 3), np.uint8))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda frames: frames[:1], "holds 1 frames, expected 2"),
        (lambda frames: [*frames, frames[0]], "holds 3 frames, expected 2"),
        (lambda frames: [frames[0], frames[1][:50]], "a frame cannot be decoded"),
        (lambda frames: [b"", frames[1]], "a frame cannot be decoded"),
        (lambda frames: [b"no picture", frames[1]], "a frame cannot be decoded"),
        (lambda frames: [frames[0], SMALLER], r"a frame .* \(it is \(8, 16, 3\), the manifest says \(16, 16, 3\)"),
    ],
    ids=["one frame", "three frames", "cut", "empty", "no picture", "smaller"],
)
def test_a_record_that_cannot_be_used_fails_alone(
    folder: Path, edit: Callable[[list[bytes]], list[bytes]], message: str, threads: int
) -> None:
    intact = data_of(folder.parents[1], ("arm",))
    rows = all_rows(intact)
    expected, _ = assembled(Assembler(intact.spec), rows)

    def rewrite(records: list[bytes]) -> list[bytes]:
        records[3] = encode_record(edit(list(decode_record(records[3]))))
        return records

    rewrite_records(folder, "train", SECOND, rewrite)
    data = data_of(folder.parents[1], ("arm",))
    out, done = assembled(Assembler(data.spec, threads=threads), rows)
    assert failed_records(data, done, rows) == {(SECOND, 3)}
    for _, error in done.failed:
        assert isinstance(error, RecordError)
        with pytest.raises(RecordError, match=message):
            raise error
    other_rows = np.delete(np.arange(len(rows)), [row for row, _ in done.failed])
    np.testing.assert_array_equal(out["frames"][other_rows], expected["frames"][other_rows])


@pytest.mark.parametrize("damage", ["cut", "gone", "of zeros", "a folder"])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_damaged_file_fails_its_records_until_it_is_repaired(folder: Path, damage: str, threads: int) -> None:
    data = data_of(folder.parents[1], ("arm",))
    rows = all_rows(data)
    assembler = Assembler(data.spec, threads=threads)
    expected, _ = assembled(assembler, rows)
    path, content = path_of(folder, 2), path_of(folder, 2).read_bytes()
    path.unlink()
    if damage == "a folder":
        path.mkdir()
    elif damage != "gone":
        path.write_bytes(content[:-1] if damage == "cut" else bytes(len(content)))
    # The file that was read is open still, and sound.
    assert not assembled(assembler, rows)[1].failed
    fresh, opened = Assembler(data.spec, threads=threads), set[RecordFile]()
    for _ in range(2):
        _, done = assembled(fresh, rows)
        assert failed_records(data, done, rows) == {(SECOND, record) for record in range(11)}
        before, opened = opened, set(fresh._records._files.values())
    assert opened == before != set(), "the others stay open"
    if damage == "a folder":
        path.rmdir()
    path.write_bytes(content)
    out, done = assembled(fresh, rows)
    assert not done.failed
    np.testing.assert_array_equal(out["frames"], expected["frames"])


@pytest.mark.parametrize("shard", [-1, 5, (1 << 31) - 1, -(1 << 31)])
@pytest.mark.parametrize("options", [{}, NOTHING], ids=str)
def test_a_row_of_no_shard_is_an_error_that_names_its_true_one(
    folder: Path, shard: int, options: dict[str, Any]
) -> None:
    def change(table: pa.Table) -> pa.Table:
        values = table["shard"].to_pylist()
        assert values[5] == 2
        return with_values(table, "shard", [*values[:6], shard, *values[7:]])

    change_table(folder, "records", change)
    data = data_of(folder.parents[1], ("arm",), **options)
    rows = all_rows(data)
    _, done = assembled(Assembler(data.spec), rows)
    assert failed_records(data, done, rows) == {(SECOND, 1)}
    assert {error.reason for _, error in done.failed} == {f"cannot be read (the index says shard {shard} of 5)"}
    assert {error.episode for _, error in done.failed} == {3}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("decode", ["host", "device"])
def test_a_row_fails_once_even_if_more_than_one_thing_is_wrong(folder: Path, threads: int, decode: Any) -> None:
    def change(table: pa.Table) -> pa.Table:
        rows = [-1 if shard == 2 else row for row, shard in zip(table["steps_row"], table["shard"].to_pylist())]  # noqa: B905
        return with_values(table, "steps_row", rows)

    change_table(folder, "records", change)
    path_of(folder, 2).unlink()
    data = data_of(folder.parents[1], ("arm",))
    rows = all_rows(data)
    _, done = assembled(Assembler(data.spec, threads=threads, decode=decode), rows)
    assert failed_records(data, done, rows) == {(SECOND, record) for record in range(11)}


@pytest.mark.parametrize("threads", [1, 3])
def test_a_limit_on_open_files_is_not_taken_for_damage(root: Path, threads: int) -> None:
    data = data_of(root)
    assembler = Assembler(data.spec, threads=threads)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    rows, out = all_rows(data).cut(0, 4), assembler.empty(4)
    for suffix in ("arrow", "arrayrecord"):
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            message = rf"\.{suffix} cannot be opened: Too many open files; raise the limit on"
            with pytest.raises(LimitError, match=message):
                assembler.assemble(rows, out)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        # The tables are mapped now.
        assembler.begin(rows, out)


def test_a_batch_that_memory_does_not_hold_is_refused(root: Path) -> None:
    assembler = Assembler(data_of(root).spec)
    with memory_limit(), pytest.raises(RingError, match=r"a batch of 1000000000 rows needs [\d,]{13,} bytes"):
        assembler.empty(1_000_000_000)


def test_the_default_number_of_open_files_leaves_handles_to_others() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    try:
        for limit in (used, used + 100, used + 1000, min(hard, 100_000)):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            assert 4 <= default_max_open() <= max(4, min(1 << 15, (limit - used) // 2 + 1))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("threads", [1, 3])
def test_the_work_of_a_batch_counts_the_bytes_of_its_records(root: Path, threads: int) -> None:
    data = data_of(root)
    rows = all_rows(data)
    _, done = assembled(Assembler(data.spec, threads=threads), rows)
    sizes = [data.sample_index.splits[s].records.array("num_bytes") for s in range(2)]
    assert done.work.bytes == sum(int(sizes[s][r]) for s, r in zip(rows.split, rows.record, strict=True))
    afar = ("requests", "remote_bytes")
    assert all((amount > 0) != (name in afar) for name, amount in vars(done.work).items())
