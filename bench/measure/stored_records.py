"""Records of a loader's data, read one by one at their locations in the index."""

from __future__ import annotations

from collections.abc import Sequence

from stream.batch.spec import RECORD_COLUMNS
from stream.format.index import SplitIndex
from stream.format.names import frame_views
from stream.format.record_file import RecordFile
from stream.storage.errors import FormatError


class StoredRecords:
    """A reader of records; the file of the latest record stays open.

    Args:
        splits: Splits that records are in, ``views.splits`` of a loader's data.
    """

    def __init__(self, splits: Sequence[SplitIndex]) -> None:
        self._splits = splits
        self._open: tuple[str, RecordFile] | None = None

    def frames(self, split: int, record: int) -> list[memoryview]:
        """Return the encoded frames of a record.

        Args:
            split: Number of the split.
            record: Row of its ``records``.

        Raises:
            FormatError, OSError: The record cannot be read.
        """
        index = self._splits[split]
        shard, *location = (int(index.records.array(name)[record]) for name in RECORD_COLUMNS)
        path = index.record_path(shard)
        if self._open is None or self._open[0] != path:
            self._open = path, RecordFile(path, int(index.shards.sizes[shard]))
        try:
            return frame_views(self._open[1].read(*location))
        except FormatError as error:
            raise FormatError(f"{path}: row {record} of the index {error}") from None
