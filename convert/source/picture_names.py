"""Columns of texts that name picture files. Such files are not read; the messages here say what was seen."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from convert.source.places import walk

PICTURE_FILES = tuple(f"*.{ending}" for ending in ("mp4", "avi", "mkv", "mov", "svo", "png", "jpg", "jpeg", "webp"))
"""Names of the files of pictures and videos."""
FUNCTION = "read both with a function of your own, python:FILE.py:FUNCTION (docs/own-data.md)"
"""Advice on pictures in files that are not part of the data."""


def describe_names(texts: Mapping[str, str], file: Path, root: Path) -> str:
    """Return a clause about the first column that names an existing picture file, empty if none does.

    Args:
        texts: One text of each column, by the name of the column.
        file: File of the columns. Its folder, and those above it up to ``root``, are tried for relative names.
        root: Folder of the dataset.
    """
    folders = [folder for folder in file.parents if folder.is_relative_to(root)]
    for column, text in texts.items():
        is_picture = any(Path(text.lower()).match(pattern) for pattern in PICTURE_FILES)
        if is_picture and any(os.path.isfile(folder / text) for folder in folders):
            return (
                f"; {column} in {file.relative_to(root)} is text with names of picture files, {text!r:.200}: {FUNCTION}"
            )
    return ""


def describe_parquet(root: Path) -> str:
    """Return the clause about the first parquet file below a folder, empty if it names no picture files."""
    file = next(walk(root, ["*.parquet"]), None)
    if file is None:
        return ""
    with contextlib.suppress(pa.ArrowException, OSError):
        parquet = pq.ParquetFile(file)
        columns = [field.name for field in parquet.schema_arrow if _is_text(field.type)]
        for batch in parquet.iter_batches(1, columns=columns):
            texts = {name: text for name, text in batch.to_pylist()[0].items() if text}
            return describe_names(texts, file, root)
    return ""


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
