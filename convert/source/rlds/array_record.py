"""ArrayRecord files, the other format in which TFDS stores records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import xxhash
from array_record.python.array_record_module import ArrayRecordReader

from convert.errors import DamagedRecord
from convert.report import first_line

_OPTIONS = "readahead_buffer_size:0,max_parallelism:1"


class ArrayRecordFile:
    """An iterator over the records of a local ArrayRecord file; ``name`` is its name in messages."""

    def __init__(self, path: Path, *, name: str) -> None:
        self._path = path
        self._name = name
        self._digest = xxhash.xxh3_128()

    @property
    def digest(self) -> str:
        """XXH3 in hex over the records read so far."""
        return self._digest.hexdigest()

    def read(self, is_requested: Callable[[int], bool]) -> Iterator[bytes | DamagedRecord | None]:
        """Yield each record, or a ``DamagedRecord`` instead of one that does not read.

        An unrequested record is read for the digest and yielded as None. In a file that is cut short no record is
        readable: the only item is a ``DamagedRecord`` with ``rest=True``.
        """
        reader = ArrayRecordReader(str(self._path), _OPTIONS)
        if not reader.ok():
            yield DamagedRecord(f"{self._name}: not a complete ArrayRecord file; copy it again", rest=True)
            return
        for number in range(reader.num_records()):
            try:
                (record,) = reader.read(number, number + 1)
            except (RuntimeError, ValueError, IndexError) as error:
                yield DamagedRecord(f"{self._name}: record {number} does not read: {first_line(error)}", rest=False)
            else:
                self._digest.update(xxhash.xxh3_128_digest(record))
                yield record if is_requested(number) else None
