"""Checks on the pictures of a converted shard: some of its pairs, decoded and looked at."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import cv2
import numpy as np

from convert.doctor.columns import Episodes, OpenShard
from convert.doctor.rules import (
    BLACK_LEVEL,
    BLACK_SHARE,
    BLANK_SHARE,
    CAST_DATASETS,
    CAST_FLOOR,
    CAST_NEARER,
    CAST_SCORE,
    FLAT_DEVIATION,
    FROZEN_LEVELS,
    FROZEN_SHARE,
    LEAST_SAMPLED,
    Example,
    Notes,
    Place,
)
from convert.errors import CorruptFrame
from convert.report import first_line
from convert.shard.images import decode_frame, encode_jpeg
from stream.storage.errors import FormatError

_PICTURE_HEIGHT = 128
_PICTURE_WIDTH = 512
_PICTURE_QUALITY = 80
_SAMPLES = 2
"""Pairs of a shard that are kept as pictures though nothing is wrong with them."""


@dataclass
class FrameFacts:
    """What some pairs show.

    Attributes:
        pairs: Pairs that were decoded.
        frozen: Pairs among them that show twice the same picture.
        frames: Frames that were decoded, two a pair.
        blank: Frames among them that are black or constant.
        casts: Red minus blue of each pair that is not blank, -255 to 255.
        samples: A few sound pairs.
    """

    pairs: int = 0
    frozen: int = 0
    frames: int = 0
    blank: int = 0
    casts: list[float] = field(default_factory=list)
    samples: list[Example] = field(default_factory=list)

    def __iadd__(self, other: FrameFacts) -> FrameFacts:
        for name in ("pairs", "frozen", "frames", "blank"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.casts += other.casts
        self.samples += other.samples
        return self


def check_pairs(
    shard: OpenShard, episodes: Episodes, records: Sequence[int], notes: Notes, *, pictures: bool
) -> FrameFacts:
    """Decode the first and the last frame of some records and look at them.

    Args:
        shard: to read from; raises what it does where no record can be read.
        episodes: of that shard.
        records: numbers of records in the shard.
        notes: for what is found.
        pictures: keep small pictures for people.
    """
    facts = FrameFacts()
    split = shard.place.split
    steps, offsets = shard.column("records", "step"), shard.column("records", "offset")
    looked_at: set[int] = set()
    for record in records:
        row, step = episodes.row_of(record), int(steps[record])
        place = episodes.place(row, step=step, record=record)
        try:
            first, last = shard.end_frames(record)
            pair = (decode_frame(first), decode_frame(last))
        except (FormatError, CorruptFrame) as error:
            text = f"record {record}: {first_line(error)}"
            notes.add("frame_damaged", split, Example(place=place, text=text, instruction=episodes.text(row)))
            continue
        facts.pairs += 1
        facts.frames += 2
        last_step = step + int(offsets[record])
        blank = [_blank(frame) for frame in pair]
        if any(blank):
            picture = thumbnail(pair) if pictures else None
            facts.blank += 2 - blank.count("")
            brightness = np.mean([cv2.mean(frame)[:3] for frame in pair])
            for rule in sorted({rule for rule in blank if rule}):
                which = [number for number, found in zip((step, last_step), blank, strict=True) if found == rule]
                text = f"frames of steps {' and '.join(map(str, which))}, brightness {brightness:.0f} of 255"
                example = Example(place=place, text=text, instruction=episodes.text(row), picture=picture)
                notes.add(rule, split, example, count=len(which))
            continue
        facts.casts.append(float(np.mean([red - blue for red, _, blue, _ in map(cv2.mean, pair)])))
        if first == last or same_picture(*pair):
            facts.frozen += 1
            if row not in looked_at:
                looked_at.add(row)
                _note_frozen(shard, episodes, row, place, pair, notes, pictures=pictures)
        elif pictures and len(facts.samples) < _SAMPLES:
            text = f"steps {step} and {last_step}"
            example = Example(place=place, text=text, instruction=episodes.text(row), picture=thumbnail(pair))
            facts.samples.append(example)
    return facts


def first_frames(shard: OpenShard, rows: Sequence[int], *, pictures: int = 0) -> list[tuple[bytes, bytes | None]]:
    """Return the hash of each episode's first stored frame, and a small picture of the first few.

    Raises FormatError or OSError if one cannot be read.
    """
    found: list[tuple[bytes, bytes | None]] = []
    episodes = Episodes(shard)
    for row in rows:
        first, _ = shard.end_frames(int(episodes.first_record[row]))
        picture = None
        if len(found) < pictures:
            with contextlib.suppress(CorruptFrame):
                picture = thumbnail((decode_frame(first),))
        found.append((hashlib.blake2b(first, digest_size=16).digest(), picture))
    return found


def check_shares(splits: dict[str, FrameFacts], notes: Notes) -> None:
    """Check what all sampled pairs of each split say together."""
    for split, facts in splits.items():
        if facts.frames >= LEAST_SAMPLED and facts.blank >= BLANK_SHARE * facts.frames:
            black, constant = (notes.count(rule, split) for rule in ("frame_black", "frame_constant"))
            text = f"{black:,} black and {constant:,} constant of {facts.frames:,} frames that were looked at"
            rule = "frame_black" if black >= constant else "frame_constant"
            notes.move(rule, split, "frames_blank", example=Example(place=Place(), text=text))
        if facts.pairs >= LEAST_SAMPLED and facts.frozen > FROZEN_SHARE * facts.pairs:
            text = f"{facts.frozen:,} of {facts.pairs:,} pairs that were looked at"
            notes.add("frozen_pairs", split, Example(place=Place(), text=text), count=facts.frozen)


def swapped_colours(casts: dict[str, list[float]]) -> dict[str, str]:
    """Return which datasets would be much more like the others with red and blue exchanged, and by what.

    What is usual is that of the scenes, and a dataset of another colour is not wrong: this is a hint. It takes six
    datasets to say so.

    Args:
        casts: red minus blue of some pairs of each dataset.
    """
    levels = {name: float(np.median(values)) for name, values in casts.items() if len(values) >= LEAST_SAMPLED}
    if len(levels) < CAST_DATASETS:
        return {}
    found = {}
    for name, level in levels.items():
        others = np.array([other for key, other in levels.items() if key != name])
        middle = float(np.median(others))
        unit = max(CAST_FLOOR, 1.4826 * float(np.median(np.abs(others - middle))))
        apart, exchanged = abs(level - middle), abs(-level - middle)
        if apart > CAST_SCORE * unit and exchanged < CAST_NEARER * apart:
            found[name] = f"red minus blue is {level:+.0f} of 255, of the other datasets {middle:+.0f}"
    return found


def same_picture(first: np.ndarray, last: np.ndarray) -> bool:
    """Return whether no pixel of two frames, uint8 [H, W, 3], differs by more than rounding makes it."""
    return first.shape == last.shape and int(cv2.absdiff(first, last).max()) <= FROZEN_LEVELS


def thumbnail(frames: Sequence[np.ndarray]) -> bytes:
    """Return frames beside each other as one small JPEG."""
    small = []
    for frame in frames:
        scale = min(_PICTURE_HEIGHT / frame.shape[0], _PICTURE_WIDTH / len(frames) / frame.shape[1], 1.0)
        size = (max(1, round(frame.shape[1] * scale)), max(1, round(frame.shape[0] * scale)))
        small.append(cv2.resize(frame, size, interpolation=cv2.INTER_AREA))
    height = max(frame.shape[0] for frame in small)
    columns = [np.pad(frame, ((0, height - frame.shape[0]), (0, 0), (0, 0))) for frame in small]
    return encode_jpeg(np.concatenate(columns, axis=1), _PICTURE_QUALITY)


def _blank(frame: np.ndarray) -> str:
    """Return the rule that a frame without content falls under, or nothing."""
    bright = cv2.countNonZero(cv2.inRange(cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY), BLACK_LEVEL, 255))
    if bright <= BLACK_SHARE * frame.shape[0] * frame.shape[1]:
        return "frame_black"
    return "frame_constant" if float(cv2.meanStdDev(frame)[1].max()) < FLAT_DEVIATION else ""


def _note_frozen(
    shard: OpenShard,
    episodes: Episodes,
    row: int,
    place: Place,
    pair: tuple[np.ndarray, np.ndarray],
    notes: Notes,
    *,
    pictures: bool,
) -> None:
    """Look at the beginning and the end of the episode of a frozen pair: if they are that picture too, it is frozen."""
    begin = int(episodes.first_record[row])
    end = begin + int(episodes.num_records[row]) - 1
    try:
        ends = (decode_frame(shard.end_frames(begin)[0]), decode_frame(shard.end_frames(end)[1]))
    except (FormatError, CorruptFrame):
        return
    if all(same_picture(pair[0], frame) for frame in ends):
        picture = thumbnail((ends[0], pair[0], ends[1])) if pictures else None
        text = f"its first frame, that of step {place.step} and its last one are the same picture"
        example = Example(place=place, text=text, instruction=episodes.text(row), picture=picture)
        notes.add("frozen_episode", shard.place.split, example)
