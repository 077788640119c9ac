"""Records whose bytes are as the manifest says and whose content is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pyarrow as pa
import pytest

from convert.shard.images import encode_jpeg
from convert.shard.record_file import encode_record
from stream.format.names import decode_record, shard_file
from tests.fixtures.datasets.rewritten_records import Edit, change_table, rewrite_records
from tests.fixtures.faults.conversion_damage import STEM, problems, verify


def change_records(folder: Path, edit: Edit) -> None:
    rewrite_records(folder, "train", STEM, edit)


def with_frame(number: int, change: Callable[[bytes], bytes]) -> Callable[[list[bytes]], list[bytes]]:
    """Change one frame of the first record."""

    def edit(records: list[bytes]) -> list[bytes]:
        frames = decode_record(records[0])
        frames[number] = change(frames[number])
        return [encode_record(frames), *records[1:]]

    return edit


def end_early(frame: bytes) -> bytes:
    return frame[: len(frame) // 2]


def enlarge(frame: bytes) -> bytes:
    return encode_jpeg(np.zeros((80, 64, 3), np.uint8), 90)


def as_png(frame: bytes) -> bytes:
    return cv2.imencode(".png", np.zeros((64, 64, 3), np.uint8))[1].tobytes()


def another_picture(frame: bytes) -> bytes:
    return encode_jpeg(np.zeros((64, 64, 3), np.uint8), 90)


def another_magic(records: list[bytes]) -> list[bytes]:
    return [b"FRM2" + records[0][4:], *records[1:]]


def one_frame_less(records: list[bytes]) -> list[bytes]:
    return [encode_record(decode_record(records[0])[:-1]), *records[1:]]


def another_order(records: list[bytes]) -> list[bytes]:
    return [records[1], records[0], *records[2:]]


RECORD_EDITS: list[tuple[Callable[[list[bytes]], list[bytes]], str]] = [
    (with_frame(0, end_early), "frame 0 of 4: JPEG of"),
    (with_frame(0, lambda frame: b""), "frame 0 of 4: 0 bytes that are not a JPEG"),
    (with_frame(3, enlarge), "frame 3 of 4: is 80x64, the manifest says 64x64"),
    (with_frame(1, as_png), "that are not a JPEG"),
    (with_frame(1, another_picture), "its frame of step 1 is not the frame of an earlier record"),
    (another_magic, "step 0): record starts with b'FRM2'"),
    (one_frame_less, "holds 3 frames, the manifest says 4"),
    (another_order, "is not the frame of an earlier record"),
]


@pytest.mark.parametrize(("edit", "text"), RECORD_EDITS)
def test_a_record_with_wrong_content_is_found_when_deep(
    root: Path, folder: Path, edit: Callable[[list[bytes]], list[bytes]], text: str
) -> None:
    change_records(folder, edit)
    assert verify(root, deep=False).ok
    report = verify(root)
    assert text in problems(report)
    assert {problem.file for problem in report.problems} == {str(folder / "train" / shard_file(STEM))}


def test_a_record_too_few_is_found_without_deep(root: Path, folder: Path) -> None:
    change_records(folder, lambda records: records[1:])
    assert "records, expected" in problems(verify(root, deep=False))


def test_of_many_problems_of_one_file_the_first_are_told_and_the_rest_counted(root: Path, folder: Path) -> None:
    count = 0

    def edit(records: list[bytes]) -> list[bytes]:
        nonlocal count
        count = len(records)
        return [b"nothing at all" for _ in records]

    change_records(folder, edit)
    (finding,) = verify(root).findings
    *_, last = finding.examples
    assert count > 11 and finding.count == count and len(finding.examples) == 11
    assert last.to_text().endswith(f": and more ({count - 10} of these)")


@pytest.mark.parametrize(("column", "value"), [("position", 3), ("num_bytes", 99), ("xxh3_64", 5)])
def test_an_index_that_leads_to_other_bytes_is_found_when_deep(
    root: Path, folder: Path, column: str, value: int
) -> None:
    def edit(table: pa.Table) -> pa.Table:
        values = table[column].to_pylist()
        values[-1] = value
        path = table.schema.get_field_index(column)
        return table.set_column(path, table.schema.field(path), pa.array(values, table.schema.field(path).type))

    change_table(folder, "train", "records", edit)
    assert verify(root, deep=False).ok
    assert "is not where the index says, or has another checksum" in problems(verify(root))
