"""Notes on columns of texts that name picture files. Such files are not read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from convert.source.locations import walk

PICTURE_FILES = tuple(f"*.{ending}" for ending in ("mp4", "avi", "mkv", "mov", "svo", "png", "jpg", "jpeg", "webp"))
"""Names of the files of pictures and videos."""
FUNCTION = "read both with your own function, python:FILE.py:FUNCTION (docs/own-data.md)"
"""Advice on pictures in files that are not part of the data."""


def describe_names(text_by_column: Mapping[str, str], data_file: Path, dataset_folder: Path) -> str:
    """Return a clause about the first column with a text that names an existing picture file, empty if none does.

    Relative names are looked up in the folder of the file and those above it, up to ``dataset_folder``.
    """
    parents = [parent for parent in data_file.parents if parent.is_relative_to(dataset_folder)]
    for column_name, text in text_by_column.items():
        is_picture = any(Path(text.lower()).match(pattern) for pattern in PICTURE_FILES)
        if is_picture and any(os.path.isfile(parent / text) for parent in parents):
            name = data_file.relative_to(dataset_folder)
            return f"; {column_name} in {name} is text with names of picture files, {text!r:.200}: {FUNCTION}"
    return ""


def describe_parquet(dataset_folder: Path) -> str:
    """Return the clause about the first parquet file below a folder, empty if it names no picture files."""
    with contextlib.suppress(pa.ArrowException, OSError, StopIteration):
        data_file = next(walk(dataset_folder, ["*.parquet"]))
        parquet_file = pq.ParquetFile(data_file)
        columns = [field.name for field in parquet_file.schema_arrow if field.type in (pa.string(), pa.large_string())]
        (row,) = next(parquet_file.iter_batches(1, columns=columns)).to_pylist()
        text_by_column = {column_name: text for column_name, text in row.items() if text}
        return describe_names(text_by_column, data_file, dataset_folder)
    return ""
