"""Rules of ``pairstream verify`` and ``pairstream doctor``, and their thresholds."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from stream.format.names import MANIFEST_NAME, QUARANTINE_NAME

Severity = Literal["error", "warning", "hint"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "hint")

MAX_EXAMPLES = 3
"""Examples of each finding; the count has all."""
BLACK_LEVEL = 16
"""Brightness below which a pixel is black: the black of video."""
BLACK_SHARE = 0.01
"""Share of brighter pixels up to which a frame is black: a dark scene still has a lamp or a reflection."""
FLAT_DEVIATION = 2.0
"""Standard deviation of each channel below which a frame is constant. A JPEG of one colour has less than 1, a blank
wall has 5 and more because of noise and shade."""
FROZEN_LEVELS = 4
"""Largest difference of two pixels of the same picture. The noise of a live camera is larger, so a robot that stands
still is not frozen."""
FROZEN_SHARE = 0.2
"""Share of frozen pairs above which a split is suspect: episodes start and end at rest."""
BLANK_SHARE = 0.5
"""Share of blank frames from which the camera is suspect; fewer may be placeholders of some episodes."""
LEAST_SAMPLED = 8
"""Frames or pairs below which a share says nothing."""
LEAST_EPISODE_STEPS = 5
"""Steps below which an episode is constant by chance."""
LEAST_STEPS = 20
"""Steps of a split below which a dimension or a gripper may stay still by chance."""
LEAST_GRIPPER_STEPS = 100
"""Steps of a split below which a gripper may use half of its range by chance: it opens and closes within seconds."""
LEAST_EPISODES = 20
"""Episodes of a dataset below which the median and the MAD say little."""
OUTLIER_SCORE = 25.0
"""Robust z-score of an outlier. Tasks within a dataset differ by 5 to 15; degrees instead of radians are a factor of
57, millimetres instead of metres a factor of 1000."""
GRIPPER_TOLERANCE = 0.05
"""Distance beyond the ends of a gripper, relative to open - closed, that sensors overshoot by."""
DAMAGED_SHARE = 0.01
"""Share of damaged episodes above which the source is suspect; a few are normal in large files."""
PAIRLESS_SHARE = 0.2
"""Share of episodes without a pair above which the offset is long for the dataset."""
CAST_SCORE = 3.5
"""Robust z-score of red minus blue of a dataset among the others: the usual limit for outliers."""
CAST_FLOOR = 4.0
"""Least unit of this score, in levels of 255: light bulbs differ by more."""
CAST_NEARER = 0.5
"""Largest distance from the other datasets after the exchange of red and blue, relative to the distance before."""
CAST_DATASETS = 6
"""Datasets below which the usual colours are unknown."""

RELATED = 0.5
"""Correlation from which two numbers mean the same thing; a command and what the robot does of it have more."""
UNIT_FACTOR = 3.0
"""Factor between deltas and poses beyond which the unit is wrong: robots follow a command to 0.5 to 1.5 times."""
SPACE_LIMITS = {"action_eef_delta": (1.0, math.pi), "state_eef": (10.0, 2 * math.pi)}
"""Largest translation (m) and rotation (rad) of a step and of a pose."""


class Rule(NamedTuple):
    """One thing to look for.

    Attributes:
        unit: Things that a finding counts.
        meaning: Effect on training.
    """

    name: str
    severity: Severity
    unit: str
    meaning: str


_REMAKE_HINT = (
    f"remove the named files and run the same convert.run command, which makes them again; for {MANIFEST_NAME} or "
    f"{QUARANTINE_NAME} run it with --overwrite"
)
_REPAIR_HINT = "correct `spaces` in the registry, then run pairstream reindex"
_ALL_RULES = (
    Rule("incomplete", "error", "manifests", "not complete or not usable; run the same convert.run command again"),
    Rule("damaged", "error", "places", f"not what the manifest says; {_REMAKE_HINT}"),
    Rule("unreadable", "error", "files", "training would stop here; pairstream verify lists all damage"),
    Rule("frame_damaged", "error", "pairs", "cannot be decoded; pairstream verify --deep finds all of them"),
    Rule("nonfinite_action", "error", "episodes", "NaN or infinity in the action makes the loss NaN"),
    Rule("nonfinite_state", "error", "episodes", "NaN or infinity in the state makes the loss NaN"),
    Rule("frames_blank", "error", "frames", "half of the frames or more show nothing; is it the right camera?"),
    Rule("actions_dead", "error", "episodes", "no episode has an action that changes"),
    Rule("instructions_missing", "error", "episodes", "no episode has an instruction, but the registry says they do"),
    Rule("leakage", "error", "episodes", "the same episode is in two splits: validation sees training data"),
    Rule(
        "space_gripper_inverted",
        "error",
        "dimensions",
        f"opens where the state closes; exchange its ends: {_REPAIR_HINT}",
    ),
    Rule("space_delta_factor", "error", "dimensions", f"has another unit than the poses; scale it: {_REPAIR_HINT}"),
    Rule("statistics_differ", "error", "dimensions", "the manifest has the statistics of other files"),
    Rule("split_empty", "warning", "splits", "nothing can be drawn from it"),
    Rule("source_damaged", "warning", "episodes", "the source had damaged episodes; see quarantine.jsonl"),
    Rule("frame_black", "warning", "frames", "shows nothing: the camera was off or covered"),
    Rule("frame_constant", "warning", "frames", "has one colour: a placeholder, or no camera"),
    Rule("frozen_pairs", "warning", "pairs", "both frames are the same picture: nothing can be learned from them"),
    Rule("frozen_episode", "warning", "episodes", "its pictures never change, not even by the noise of the camera"),
    Rule("constant_action", "warning", "episodes", "the action is the same at every step"),
    Rule("gripper_range", "warning", "episodes", "the gripper is beyond open and closed of the registry"),
    Rule("gripper_still", "warning", "dimensions", "the gripper never moves in this split"),
    Rule(
        "space_gripper_range", "warning", "episodes", f"a gripper of a space is not in [0, 1]; map it: {_REPAIR_HINT}"
    ),
    Rule("space_gripper_still", "warning", "dimensions", f"the gripper never moves; is it this path? {_REPAIR_HINT}"),
    Rule(
        "space_delta_unrelated", "warning", "dimensions", f"is not the change of the poses; axes, frame? {_REPAIR_HINT}"
    ),
    Rule("space_units", "warning", "episodes", f"no robot has that many metres or radians; scale it: {_REPAIR_HINT}"),
    Rule("outlier_episode", "warning", "episodes", "other units or a fault: far from the other episodes"),
    Rule("extreme_values", "warning", "dimensions", "scaled by minimum and maximum, all other values are one point"),
    Rule("instruction_empty", "warning", "episodes", "has no instruction at some step, but the registry says they do"),
    Rule("duplicate_episode", "warning", "episodes", "exists twice; a cut such as train[90%:] may part the copies"),
    Rule("registry_changed", "hint", "datasets", "pairstream reindex brings vectors and statistics up to date"),
    Rule("unfinished", "hint", "splits", "another split is being added; the same convert.run command resumes it"),
    Rule("without_pairs", "hint", "episodes", "gave no pair: the offset is long for this dataset"),
    Rule("gripper_one_sided", "hint", "dimensions", "never comes near one of its ends: another scale?"),
    Rule("dimension_dead", "hint", "dimensions", "has only one value; dividing by its std is dividing by zero"),
    Rule("instruction_same", "hint", "episodes", "has one instruction for all, though the registry says they inform"),
    Rule("colours_swapped", "hint", "frames", "with red and blue exchanged it would resemble the others; look at it"),
)
RULES: dict[str, Rule] = {rule.name: rule for rule in _ALL_RULES}
"""Rules by name, the worst first."""
