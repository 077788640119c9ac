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


def count_frames(shards: Sequence[ShardEntry], cameras: Sequence[str]) -> dict[str, Any]:
    """Return the field ``image`` of a manifest; ``cameras`` are those of the layout ``frames``, empty for pairs."""
    sizes, passed = total_counts(shard.sizes for shard in shards), sum(shard.passed for shard in shards)
    by_camera = {name: total_counts(shard.camera_sizes.get(name, {}) for shard in shards) for name in cameras}
    return {
        "encoding": "jpeg",
        "sizes": sizes,
        **({"cameras": by_camera} if by_camera else {}),
        "passed": passed,
        "transcoded": sum(sizes.values()) - passed,
    }


def total_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums of counts by key, sorted by key."""
    return dict(sorted(sum(map(Counter, counts), Counter[str]()).items()))
