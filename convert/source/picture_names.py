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
    """Return a clause about the first column that names an existing picture file, empty if none does.

    Args:
        text_by_column: One text of each column, by the name of the column.
        data_file: File of the columns. Relative names are looked up in its folder and those above it, up to
            ``dataset_folder``.
        dataset_folder: Folder of the dataset.
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
    data_file = next(walk(dataset_folder, ["*.parquet"]), None)
    if data_file is None:
        return ""
    with contextlib.suppress(pa.ArrowException, OSError):
        parquet_file = pq.ParquetFile(data_file)
        text_columns = [column.name for column in parquet_file.schema_arrow if _is_text(column.type)]
        for batch in parquet_file.iter_batches(1, columns=text_columns):
            text_by_column = {column_name: text for column_name, text in batch.to_pylist()[0].items() if text}
            return describe_names(text_by_column, data_file, dataset_folder)
    return ""


def _is_text(arrow_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type))
