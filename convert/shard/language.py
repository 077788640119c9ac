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

    The first of the features that is not empty at a step is taken, and of several texts of a step the first.
    """
    instructions = [""] * episode.num_steps
    for feature in features:
        feature_texts = _texts(episode.column(feature), encoding)
        if feature.level == "episode":
            feature_texts = feature_texts[:1] * episode.num_steps
        if feature_texts:
            instructions = [instruction or text for instruction, text in zip(instructions, feature_texts, strict=True)]
        if all(instructions):
            break
    return instructions


def _texts(column: Column, encoding: Literal["text", "utf8_codes"]) -> list[str]:
    if column.values is None:
        return []
    if encoding == "text":
        texts_per_row = column.feature.size or 1
        text_counts = column.lengths[0] * texts_per_row if column.lengths else np.full(column.rows, texts_per_row)
        text_ranges = zip((np.cumsum(text_counts) - text_counts).tolist(), text_counts.tolist(), strict=True)
        return [next(filter(None, column.values[text : text + num_texts]), "") for text, num_texts in text_ranges]
    code_rows = np.asarray(column.values).reshape(column.rows, column.feature.size or 0)
    text_by_code: dict[bytes, str] = {}
    return [text_by_code.setdefault(row.tobytes(), decode_codes(row)) for row in code_rows]


def decode_codes(utf8_codes: np.ndarray) -> str:
    """Decode a text that is stored as one UTF-8 byte per number, padded with zeros.

    >>> decode_codes(np.array([99, 97, 102, 195, 169, 0, 0], np.int32))
    'café'
    """
    return utf8_codes.astype(np.uint8).tobytes().split(b"\0", 1)[0].decode("utf-8", errors="replace")
