"""Counts in a manifest: sums over the shards of a dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stream.format.manifest import ShardEntry

DAMAGED_EPISODE = ("unreadable", "malformed", "missing_feature", "missing_frames", "unmatched_frames")
"""Reasons for leaving out an episode that mean damaged input."""
DAMAGE = (*DAMAGED_EPISODE, "corrupt_frame", "missing_camera", "spare_frames", "undeclared")
"""Reasons that mean damaged input; ``empty`` and ``too_short`` episodes are healthy and give no pair."""

BROKEN_FILE = ("unreadable", "undeclared")
"""Reasons that another copy of the file may mend."""


def count_frames(shard_entries: Sequence[ShardEntry], cameras: Sequence[str]) -> dict[str, Any]:
    """Return the field ``image`` of a manifest; ``cameras`` are those of the layout ``frames``, empty for pairs."""
    size_counts = total_counts(entry.sizes for entry in shard_entries)
    num_passed = sum(entry.passed for entry in shard_entries)
    sizes_by_camera = {
        name: total_counts(entry.camera_sizes.get(name, {}) for entry in shard_entries) for name in cameras
    }
    return {
        "encoding": "jpeg",
        "sizes": size_counts,
        **({"cameras": sizes_by_camera} if sizes_by_camera else {}),
        "passed": num_passed,
        "transcoded": sum(size_counts.values()) - num_passed,
    }


def total_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums of counts by key, sorted by key."""
    return dict(sorted(sum(map(Counter, counts), Counter[str]()).items()))


def count_damage(left_out: Mapping[str, int]) -> int:
    """Return how much was left out because it was damaged."""
    return sum(left_out.get(reason, 0) for reason in DAMAGE)
