"""Checks of the pictures of a split: some of its pairs, decoded."""

from __future__ import annotations

import contextlib
from functools import partial

import cv2
import numpy as np

from convert import rules
from convert.doctor.split import FrameFacts, OpenSplit
from convert.errors import CorruptFrame
from convert.findings import Notes
from convert.report import first_line
from stream.base.errors import FormatError


def check_frames(split: OpenSplit, notes: Notes) -> None:
    """Decode the first and the last frame of the sampled pairs and look at them."""
    facts, compared = split.frames, set[int]()
    for records in filter(None, map(split.pair, split.sample.tolist())):
        episode = split.value("records", "episode", records[0])
        first, last = (split.value("records", "step", record) for record in records)
        last += split.value("records", "offset", records[1])
        example = partial(split.example, episode, step=first, record=records[0])
        try:
            pair = split.decode(*records)
        except (FormatError, CorruptFrame, OSError) as error:
            notes.add("frame_damaged", split.name, partial(example, first_line(error)))
            continue
        facts.pairs += 1
        blank = [_blank(frame) for frame in pair]
        for rule in sorted({rule for rule in blank if rule}):
            steps = [step for step, found in zip((first, last), blank, strict=True) if found == rule]
            brightness = np.mean([cv2.mean(frame)[:3] for frame in pair])
            text = f"frames of steps {' and '.join(map(str, steps))}, brightness {brightness:.0f} of 255"
            notes.add(rule, split.name, partial(example, text), count=len(steps))
            facts.blank += len(steps)
        if any(blank):
            continue
        facts.casts.append(float(np.mean([red - blue for red, _, blue, _ in map(cv2.mean, pair)])))
        if same_picture(*pair):
            facts.frozen += 1
            ends = end_frames(split, episode) if episode not in compared else ()
            compared.add(episode)
            if ends and all(same_picture(pair[0], end) for end in ends):
                text = f"its first frame, its frame of step {first} and its last frame are the same picture"
                notes.add("frozen_episode", split.name, partial(example, text))
    check_shares(split.name, facts, notes=notes)


def end_frames(split: OpenSplit, episode: int) -> tuple[np.ndarray, ...]:
    """Return the first and the last frame of an episode, nothing if they cannot be decoded."""
    with contextlib.suppress(FormatError, CorruptFrame, OSError):
        return split.decode(*split.ends(episode))
    return ()


def check_shares(split: str, facts: FrameFacts, *, notes: Notes) -> None:
    """Check the shares of blank frames and of frozen pairs in a split."""
    if facts.pairs * 2 >= rules.LEAST_SAMPLED and facts.blank >= rules.BLANK_SHARE * facts.pairs * 2:
        black, constant = (notes.count(rule, split) for rule in ("frame_black", "frame_constant"))
        text = f"{black:,} black and {constant:,} constant of {facts.pairs * 2:,} decoded frames"
        notes.move("frame_black" if black >= constant else "frame_constant", split, "frames_blank", first_text=text)
    if facts.pairs >= rules.LEAST_SAMPLED and facts.frozen > rules.FROZEN_SHARE * facts.pairs:
        text = f"{facts.frozen:,} of {facts.pairs:,} decoded pairs"
        notes.add("frozen_pairs", split, text, count=facts.frozen)


def swapped_colours(casts: dict[str, list[float]]) -> dict[str, str]:
    """Return the datasets that would be much more like the others with red and blue exchanged, with the reason.

    A dataset of another colour is not wrong, so this is a hint. It takes six datasets to know what is usual.
    ``casts`` is red minus blue of some pairs of each dataset.
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


def _blank(frame: np.ndarray) -> str:
    """Return the rule that applies to a frame without content, or an empty text."""
    bright = cv2.countNonZero(cv2.inRange(cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY), rules.BLACK_LEVEL, 255))
    if bright <= rules.BLACK_SHARE * frame.shape[0] * frame.shape[1]:
        return "frame_black"
    return "frame_constant" if float(cv2.meanStdDev(frame)[1].max()) < rules.FLAT_DEVIATION else ""
