"""Sizes of chunks of video, and the numbers of their records."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from stream.base.errors import FormatError
from stream.format.index import SplitIndex
from stream.format.video import coded_sizes


def test_a_size_is_known_by_the_one_that_is_encoded() -> None:
    assert coded_sizes([(61, 83), (64, 64), (61, 83)]) == {(62, 84): (61, 83), (64, 64): (64, 64)}


def test_sizes_that_are_encoded_alike_cannot_be_told_apart() -> None:
    with pytest.raises(FormatError, match="frames of 61x83 and 62x84 cannot be told apart"):
        coded_sizes([(62, 84), (61, 83)])


def test_rows_of_a_chunk_share_the_number_of_its_record_and_holes_have_their_own() -> None:
    # The first row of each chunk is a hole, which is written after its chunk.
    positions = np.array([200, 100, 100, 400, 300, 300, 50, 60])
    index = SimpleNamespace(
        shards=SimpleNamespace(first_records=np.array([0, 6, 8])),
        records=SimpleNamespace(array={"position": positions}.__getitem__),
    )
    numbers = [SplitIndex.record_number(index, row) for row in range(8)]  # type: ignore[arg-type]
    assert numbers == [1, 0, 0, 3, 2, 2, 0, 1]
