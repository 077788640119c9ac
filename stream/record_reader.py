"""Opening ArrayRecord files for single records, in any order."""

from __future__ import annotations

import functools
import threading

from array_record.python.array_record_module import ArrayRecordReader

from stream.errors import LimitError

# Readahead buffers and threads are for reading in sequence; with the default footer prefetch of 1 MB opening takes six
# times as long (370 instead of 59 microseconds on a local disk).
_OPTIONS = "readahead_buffer_size:0,max_parallelism:0,footer_prefetch_bytes:8192"
_THREADS = 64


def open_reader(path: str) -> ArrayRecordReader:
    """Open an ArrayRecord file; whether it could be read is what ``ok()`` of the reader says.

    Raises:
        LimitError: this process cannot have the threads that array_record starts.
    """
    check_threads()
    return ArrayRecordReader(path, options=_OPTIONS)


@functools.cache
def check_threads(count: int = _THREADS) -> None:
    """See that this process can have so many more threads.

    array_record starts 64 with the first reader of a process, whatever its options say, and waits for ever if it gets
    only some of them.
    """
    end = threading.Event()
    started = []
    try:
        for _ in range(count):
            thread = threading.Thread(target=end.wait, daemon=True)
            thread.start()
            started.append(thread)
    except (RuntimeError, MemoryError):
        raise LimitError(
            f"this process can have {len(started)} more threads, and array_record needs {count}; raise the limit on "
            "processes (ulimit -u, the container's pids limit) or on address space (ulimit -v), or take fewer workers"
        ) from None
    finally:
        end.set()
        for thread in started:
            thread.join()
