"""What is still to be converted of a dataset, and why, for those who look after a conversion of many tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from convert.journal.status import ShardFailure

_LISTED = 20


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Shards of a dataset that are not finished. of: how many it has. failures: notes of those that were tried."""

    dataset: str
    shards: tuple[str, ...]
    of: int
    failures: Mapping[str, ShardFailure]

    def as_json(self) -> dict[str, Any]:
        """Return all of it, shard by shard."""
        return {
            "dataset": self.dataset,
            "shards": self.of,
            "missing": [
                {
                    "shard": shard,
                    "host": self.failures[shard].host if shard in self.failures else None,
                    "failure": self.failures[shard].message if shard in self.failures else None,
                }
                for shard in self.shards
            ],
        }


def describe_missing(missing: Missing) -> str:
    """Return a line for the dataset and one for each shard: those that failed first, not more than 20 of all.

    >>> why = ShardFailure(shard="train-00002-of-00009", host="node7", message="the disk is full")
    >>> shards = ("train-00001-of-00009", "train-00002-of-00009")
    >>> print(describe_missing(Missing(dataset="rt1", shards=shards, of=9, failures={why.shard: why})))
    rt1: 2 of 9 shards are missing
      train-00002-of-00009  failed on node7: the disk is full
      train-00001-of-00009
    """
    lines = [f"{missing.dataset}: {len(missing.shards):,} of {missing.of:,} shards are missing"]
    shards = sorted(missing.shards, key=lambda shard: shard not in missing.failures)
    for shard in shards[:_LISTED]:
        failure = missing.failures.get(shard)
        lines.append(f"  {shard}  failed on {failure.host}: {failure.message}" if failure else f"  {shard}")
    if len(shards) > _LISTED:
        lines.append(f"  and {len(shards) - _LISTED:,} more; --json lists all")
    return "\n".join(lines)
