"""Checks of the pictures of a shard: some of its pairs, decoded."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import cv2
import numpy as np

from convert.doctor import rules
from convert.doctor.findings import Example, Notes
from convert.doctor.open_shard import OpenShard
from convert.errors import CorruptFrame
from convert.report import first_line
from convert.shard.images import decode_frame, encode_jpeg
from stream.storage.errors import FormatError

_PICTURE_HEIGHT = 128
_PICTURE_WIDTH = 512
_PICTURE_QUALITY = 80
_SAMPLES = 2
"""Sound pairs of a shard to keep pictures of."""


@dataclass
class FrameFacts:
    """Facts about some pairs.

    Attributes:
        pairs: Number of decoded pairs.
        frozen: Number of pairs of twice the same picture.
        blank: Number of frames that are black or constant.
        casts: Red minus blue of each pair that is not blank, -255 to 255.
        samples: A few sound pairs.
    """

    pairs: int = 0
    frozen: int = 0
    blank: int = 0
    casts: list[float] = field(default_factory=list)
    samples: list[Example] = field(default_factory=list)

    def __iadd__(self, other: FrameFacts) -> FrameFacts:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self


def check_pairs(shard: OpenShard, records: Sequence[int], notes: Notes, *, pictures: bool) -> FrameFacts:
    """Decode the first and the last frame of some records and look at them.

    Args:
        shard: Shard to read from.
        records: Numbers of the records in the shard.
        notes: Notes to add to.
        pictures: Keep small pictures.

    Raises:
        FormatError, OSError: No record can be read.
    """
    facts, split, looked_at = FrameFacts(), shard.place.split, set[int]()
    for record in records:
        row, first_step = shard.episode_of(record), int(shard.column("records", "step")[record])
        last_record = shard.last_of(record)
        if shard.is_hole(record) or shard.is_hole(last_record):
            continue
        last_step = int(shard.column("records", "step")[last_record])
        last_step += int(shard.column("records", "offset")[last_record])
        example = partial(shard.example, row, step=first_step, record=record)
        try:
            first, last = pair = _decode_ends(shard, record, last_record)
        except (FormatError, CorruptFrame) as error:
            notes.add("frame_damaged", split, partial(example, f"record {record}: {first_line(error)}"))
            continue
        facts.pairs += 1
        thumb = partial(thumbnail, pair) if pictures else None
        blank = [_blank(frame) for frame in pair]
        for rule in sorted({rule for rule in blank if rule}):
            steps = [step for step, found in zip((first_step, last_step), blank, strict=True) if found == rule]
            brightness = np.mean([cv2.mean(frame)[:3] for frame in pair])
            text = f"frames of steps {' and '.join(map(str, steps))}, brightness {brightness:.0f} of 255"
            notes.add(rule, split, partial(example, text, picture=thumb), count=len(steps))
            facts.blank += len(steps)
        if any(blank):
            continue
        facts.casts.append(float(np.mean([red - blue for red, _, blue, _ in map(cv2.mean, pair)])))
        if same_picture(first, last):
            facts.frozen += 1
            if row not in looked_at and (ends := _same_ends(shard, row, first)):
                thumb = partial(thumbnail, ends) if pictures else None
                text = f"its first frame, its frame of step {first_step} and its last frame are the same picture"
                notes.add("frozen_episode", split, partial(example, text, picture=thumb))
            looked_at.add(row)
        elif pictures and len(facts.samples) < _SAMPLES:
            facts.samples.append(example(f"steps {first_step} and {last_step}", picture=thumb))
    return facts


def first_picture(shard: OpenShard, row: int) -> bytes | None:
    """Return a small picture of the first frame of an episode, None if it cannot be decoded."""
    with contextlib.suppress(CorruptFrame, FormatError, OSError):
        return thumbnail((decode_frame(shard.end_frames(shard.records_of(row)[0])[0]),))
    return None


def check_shares(splits: dict[str, FrameFacts], notes: Notes) -> None:
    """Check the shares of blank frames and of frozen pairs in each split."""
    for split, facts in splits.items():
        if facts.pairs * 2 >= rules.LEAST_SAMPLED and facts.blank >= rules.BLANK_SHARE * facts.pairs * 2:
            black, constant = (notes.count(rule, split) for rule in ("frame_black", "frame_constant"))
            text = f"{black:,} black and {constant:,} constant of {facts.pairs * 2:,} decoded frames"
            notes.move("frame_black" if black >= constant else "frame_constant", split, "frames_blank", text=text)
        if facts.pairs >= rules.LEAST_SAMPLED and facts.frozen > rules.FROZEN_SHARE * facts.pairs:
            text = f"{facts.frozen:,} of {facts.pairs:,} decoded pairs"
            notes.add("frozen_pairs", split, text, count=facts.frozen)


def swapped_colours(casts: dict[str, list[float]]) -> dict[str, str]:
    """Return the datasets that would be much more like the others with red and blue exchanged, with the reason.

    A dataset of another colour is not wrong, so this is a hint. It takes six datasets to know what is usual.

    Args:
        casts: Red minus blue of some pairs of each dataset.
    """
    levels = {name: float(np.median(values)) for name, values in casts.items() if len(values) >= rules.LEAST_SAMPLED}
    if len(levels) < rules.CAST_DATASETS:
        return {}
    found = {}
    for name, level in levels.items():
        others = np.array([other for key, other in levels.items() if key != name])
        middle = float(np.median(others))
        unit = max(rules.CAST_FLOOR, 1.4826 * float(np.median(np.abs(others - middle))))
        apart, exchanged = abs(level - middle), abs(-level - middle)
        if apart > rules.CAST_SCORE * unit and exchanged < rules.CAST_NEARER * apart:
            found[name] = f"red minus blue is {level:+.0f} of 255, of the other datasets {middle:+.0f}"
    return found


def same_picture(first: np.ndarray, last: np.ndarray) -> bool:
    """Return whether two frames, uint8 [H, W, 3], differ by no more than rounding."""
    return first.shape == last.shape and int(cv2.absdiff(first, last).max()) <= rules.FROZEN_LEVELS


def thumbnail(frames: Sequence[np.ndarray]) -> bytes:
    """Return a small JPEG of frames side by side."""
    small = []
    for frame in frames:
        scale = min(_PICTURE_HEIGHT / frame.shape[0], _PICTURE_WIDTH / len(frames) / frame.shape[1], 1.0)
        size = (max(1, round(frame.shape[1] * scale)), max(1, round(frame.shape[0] * scale)))
        small.append(cv2.resize(frame, size, interpolation=cv2.INTER_AREA))
    height = max(frame.shape[0] for frame in small)
    columns = [np.pad(frame, ((0, height - frame.shape[0]), (0, 0), (0, 0))) for frame in small]
    return encode_jpeg(np.concatenate(columns, axis=1), _PICTURE_QUALITY)


def _blank(frame: np.ndarray) -> str:
    """Return the rule that applies to a frame without content, or an empty text."""
    bright = cv2.countNonZero(cv2.inRange(cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY), rules.BLACK_LEVEL, 255))
    if bright <= rules.BLACK_SHARE * frame.shape[0] * frame.shape[1]:
        return "frame_black"
    return "frame_constant" if float(cv2.meanStdDev(frame)[1].max()) < rules.FLAT_DEVIATION else ""


def _decode_ends(shard: OpenShard, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first frame of a record and the last of another, decoded; raises FormatError or CorruptFrame."""
    return decode_frame(shard.end_frames(begin)[0]), decode_frame(shard.end_frames(end)[1])


def _same_ends(shard: OpenShard, row: int, frame: np.ndarray) -> list[np.ndarray]:
    """Return the first frame of an episode, ``frame``, and the last frame; nothing if they are different pictures."""
    records = shard.records_of(row)
    with contextlib.suppress(FormatError, CorruptFrame):
        first, last = _decode_ends(shard, records[0], records[-1])
        if same_picture(frame, first) and same_picture(frame, last):
            return [first, frame, last]
    return []
