"""Whether an Arrow file is compressed, asked of sound files and of ones with a byte changed."""

from __future__ import annotations

import pyarrow as pa
import pytest

from stream.arrow_file import has_compressed_batches


def arrow_file(compression: str | None, rows: int = 20) -> bytes:
    """A file with numbers and dictionary-encoded texts."""
    texts = pa.array(["a", "b"] * (rows // 2)).dictionary_encode()
    table = pa.table({"number": pa.array(range(rows)), "text": texts})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(("compression", "found"), [(None, False), ("lz4", True), ("zstd", True)])
def test_a_file_says_whether_it_is_compressed(compression: str | None, found: bool) -> None:
    assert has_compressed_batches(memoryview(arrow_file(compression))) is found


@pytest.mark.parametrize("content", [b"", b"ARROW1", arrow_file(None)[:-1], b"\xff" * 40 + b"ARROW1"])
def test_what_is_no_arrow_file_raises_value_error(content: bytes) -> None:
    with pytest.raises(ValueError):
        has_compressed_batches(memoryview(content))


@pytest.mark.parametrize("value", [0x00, 0x01, 0x7F, 0x80, 0xFF])
def test_a_changed_byte_leads_nowhere_but_to_a_value_error(value: int) -> None:
    sound = arrow_file(None)
    refused = 0
    for place in range(len(sound)):
        changed = bytearray(sound)
        changed[place] = value
        try:
            has_compressed_batches(memoryview(bytes(changed)))
        except ValueError:
            refused += 1
    assert refused
