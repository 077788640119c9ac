"""Checks of the pictures of a split: some of its pairs, decoded."""

from __future__ import annotations

import contextlib
import itertools
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
    frame_facts, compared = split.frames, set[int]()
    for records in filter(None, map(split.pair, split.sample.tolist())):
        episode = split.value("records", "episode", records[0])
        first_step, last_step = (split.value("records", "step", record) for record in records)
        last_step += split.value("records", "offset", records[1])
        example = partial(split.example, episode, step=first_step, record=records[0])
        try:
            pair_frames = split.decode(*records)
        except (FormatError, CorruptFrame, OSError) as error:
            notes.add("frame_damaged", split.name, partial(example, first_line(error)))
            continue
        frame_facts.pairs += 1
        blank_rules = [_blank(frame) for frame in pair_frames]
        for blank_rule in sorted(set(filter(None, blank_rules))):
            is_blank = [frame_rule == blank_rule for frame_rule in blank_rules]
            blank_steps = list(itertools.compress((first_step, last_step), is_blank))
            brightness = np.mean([cv2.mean(frame)[:3] for frame in pair_frames])
            sentence = f"frames of steps {' and '.join(map(str, blank_steps))}, brightness {brightness:.0f} of 255"
            notes.add(blank_rule, split.name, partial(example, sentence), count=len(blank_steps))
            frame_facts.blank += len(blank_steps)
        if any(blank_rules):
            continue
        frame_facts.casts.append(float(np.mean([red - blue for red, _, blue, _ in map(cv2.mean, pair_frames)])))
        if same_picture(*pair_frames):
            frame_facts.frozen += 1
            outer_frames = end_frames(split, episode) if episode not in compared else ()
            compared.add(episode)
            if outer_frames and all(same_picture(pair_frames[0], outer_frame) for outer_frame in outer_frames):
                sentence = f"its first frame, its frame of step {first_step} and its last frame are the same picture"
                notes.add("frozen_episode", split.name, partial(example, sentence))
    check_shares(split.name, frame_facts, notes=notes)


def end_frames(split: OpenSplit, episode: int) -> tuple[np.ndarray, ...]:
    """Return the first and the last frame of an episode, nothing if they cannot be decoded."""
    with contextlib.suppress(FormatError, CorruptFrame, OSError):
        return split.decode(*split.ends(episode))
    return ()


def check_shares(split: str, frame_facts: FrameFacts, *, notes: Notes) -> None:
    """Check the shares of blank frames and of frozen pairs in a split."""
    if frame_facts.pairs * 2 >= rules.LEAST_SAMPLED and frame_facts.blank >= rules.BLANK_SHARE * frame_facts.pairs * 2:
        num_black, num_constant = (notes.count(name, split) for name in ("frame_black", "frame_constant"))
        sentence = f"{num_black:,} black and {num_constant:,} constant of {frame_facts.pairs * 2:,} decoded frames"
        rule_name = "frame_black" if num_black >= num_constant else "frame_constant"
        notes.move(rule_name, split, "frames_blank", first_text=sentence)
    if frame_facts.pairs >= rules.LEAST_SAMPLED and frame_facts.frozen > rules.FROZEN_SHARE * frame_facts.pairs:
        sentence = f"{frame_facts.frozen:,} of {frame_facts.pairs:,} decoded pairs"
        notes.add("frozen_pairs", split, sentence, count=frame_facts.frozen)


def swapped_colours(casts: dict[str, list[float]]) -> dict[str, str]:
    """Return the datasets that would be much more like the others with red and blue exchanged, with the reason.

    A dataset of another colour is not wrong, so this is a hint. It takes six datasets to know what is usual.
    ``casts`` is red minus blue of some pairs of each dataset.
    """
    levels = {name: float(np.median(values)) for name, values in casts.items() if len(values) >= rules.LEAST_SAMPLED}
    if len(levels) < rules.CAST_DATASETS:
        return {}
    reason_by_dataset = {}
    for dataset_name, level in levels.items():
        other_levels = np.array([levels[name] for name in levels if name != dataset_name])
        median_level = float(np.median(other_levels))
        score_unit = max(rules.CAST_FLOOR, 1.4826 * float(np.median(np.abs(other_levels - median_level))))
        difference, exchanged_difference = abs(level - median_level), abs(-level - median_level)
        if difference > rules.CAST_SCORE * score_unit and exchanged_difference < rules.CAST_NEARER * difference:
            reason_by_dataset[dataset_name] = (
                f"red minus blue is {level:+.0f} of 255, of the other datasets {median_level:+.0f}"
            )
    return reason_by_dataset


def same_picture(first_frame: np.ndarray, last_frame: np.ndarray) -> bool:
    """Return whether two frames, uint8 [H, W, 3], differ by no more than rounding."""
    if first_frame.shape != last_frame.shape:
        return False
    return int(cv2.absdiff(first_frame, last_frame).max()) <= rules.FROZEN_LEVELS


def _blank(frame: np.ndarray) -> str:
    """Return the rule that applies to a frame without content, or an empty text."""
    num_bright = cv2.countNonZero(cv2.inRange(cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY), rules.BLACK_LEVEL, 255))
    if num_bright <= rules.BLACK_SHARE * frame.shape[0] * frame.shape[1]:
        return "frame_black"
    return "frame_constant" if float(cv2.meanStdDev(frame)[1].max()) < rules.FLAT_DEVIATION else ""
