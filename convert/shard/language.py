"""The instruction of every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from convert.source.episode import Column, Episode
from convert.source.features import Feature


def step_language(
    episode: Episode, features: Sequence[Feature], *, encoding: Literal["text", "utf8_codes"]
) -> list[str]:
    """Return the instruction at each step, ``""`` where it has none.

    Args:
        features: Features of steps or of the episode; the first that is not empty at a step is taken, and of several
            texts of a step the first that is not empty.
        encoding: ``utf8_codes`` for integer tensors with one UTF-8 byte per number.
    """
    texts = [""] * episode.num_steps
    for feature in features:
        found = _texts(episode.column(feature), encoding)
        if feature.level == "episode":
            found = found[:1] * episode.num_steps
        if found:
            texts = [text or other for text, other in zip(texts, found, strict=True)]
        if all(texts):
            break
    return texts


def _texts(column: Column, encoding: Literal["text", "utf8_codes"]) -> list[str]:
    if column.values is None:
        return []
    if encoding == "text":
        size = column.feature.size or 1
        counts = column.lengths[0] * size if column.lengths else np.full(column.rows, size)
        parts = zip((np.cumsum(counts) - counts).tolist(), counts.tolist(), strict=True)
        return [next(filter(None, column.values[first : first + count]), "") for first, count in parts]
    rows = np.asarray(column.values).reshape(column.rows, column.feature.size or 0)
    known: dict[bytes, str] = {}
    return [known.setdefault(row.tobytes(), decode_codes(row)) for row in rows]


def decode_codes(values: np.ndarray) -> str:
    """Decode a text that is stored as one UTF-8 byte per number, padded with zeros.

    >>> decode_codes(np.array([99, 97, 102, 195, 169, 0, 0], np.int32))
    'café'
    """
    return values.astype(np.uint8).tobytes().split(b"\0", 1)[0].decode("utf-8", errors="replace")
