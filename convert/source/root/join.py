"""Several converted datasets as one: their shards one after another, in the order in which they are named."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import xxhash

from convert.errors import UsageError
from convert.source.features import Feature
from convert.source.root.source import RootShard, RootSource
from stream.format.names import HOLE

_FREE = ("name", "tfds_name", "version", "offset", "splits", "steps_per_episode", "leave_out", "wide", "sources")
_TEXTS = ("description", "warning", "license")
"""Keys of a registry entry that may differ: those that are the first dataset's or counted, and texts to show."""
_ABSENT = "absent"


def join_sources(sources: Sequence[RootSource]) -> RootSource:
    """Return one dataset of several, which have the same cameras, columns, rate and meaning of numbers.

    A label that only some datasets have is missing in the rest. Source files get a number in front of their names if
    the ids of their episodes exist already: ``2+`` for the second dataset.

    Raises:
        UsageError: They differ (names the first difference), or an episode is in two of them.
    """
    first_source = sources[0]
    for source in sources[1:]:
        if difference := _difference("", _compared(first_source, source), _compared(source, first_source)):
            paths = f"{first_source.path} and {source.path}"
            raise UsageError(f"{paths} are not one dataset: {difference}; convert them apart")
    shards = _join_shards(sources)
    counts = {split: tuple(len(shard.episodes) for shard in split_shards) for split, split_shards in shards.items()}
    lengths = [length for split_shards in shards.values() for shard in split_shards for length in shard.lengths]
    features: dict[str, Feature] = {}
    for source in reversed(sources):
        features |= source.features
    entry = _join_entries(sources) | {"splits": {split: sum(split_counts) for split, split_counts in counts.items()}}
    return replace(
        first_source,
        path="+".join(source.path for source in sources),
        fingerprint=hashlib.sha256("".join(source.fingerprint for source in sources).encode()).hexdigest(),
        features=features,
        splits=counts,
        entry=entry | {"steps_per_episode": round(sum(lengths) / len(lengths), 2) or None},
        remarks=tuple(dict.fromkeys(remark for source in sources for remark in source.remarks)),
        shards_of=shards,
        tables={},
    )


def _join_entries(sources: Sequence[RootSource]) -> dict[str, Any]:
    """Return the first dataset's entry with the texts of all datasets."""
    entries = [source.entry for source in sources]
    joined = dict(entries[0])
    for key in _TEXTS:
        joined[key] = "; ".join(dict.fromkeys(entry[key] for entry in entries if entry.get(key))) or None
    joined["quirks"] = list(dict.fromkeys(quirk for entry in entries for quirk in entry["quirks"]))
    return joined


def _compared(source: RootSource, other_source: RootSource) -> dict[str, Any]:
    """Return the parts of a dataset that have to equal those of another one."""
    labels = source.labels ^ other_source.labels
    features = {}
    for path, feature in source.features.items():
        if path not in labels:
            facts = {"dtype": feature.dtype, "shape": list(feature.shape), "sequences": len(feature.sequences)}
            features[path] = facts
    entry = {key: value for key, value in source.entry.items() if key not in {*_FREE, *_TEXTS, "quirks"}}
    return {"layout": source.layout, "cameras": entry.pop("cameras"), "columns": features, **entry}


def _difference(name: str, first_value: Any, other_value: Any) -> str | None:
    """Return where two values differ first and how, None if they do not."""
    if isinstance(first_value, Mapping) and isinstance(other_value, Mapping):
        for key in dict.fromkeys([*first_value, *other_value]):
            nested_name = f"{name}: {key}" if name else key
            values = first_value.get(key, _ABSENT), other_value.get(key, _ABSENT)
            if difference := _difference(nested_name, *values):
                return difference
        return None
    if first_value == other_value:
        return None
    first, other = ("there" if isinstance(value, Mapping) else str(value)[:80] for value in (first_value, other_value))
    return f"{name} is {first} in the first and {other} in the other"


def _join_shards(sources: Sequence[RootSource]) -> dict[str, tuple[RootShard, ...]]:
    """Return the shards of all datasets by split, with source files named so that no two episodes have one id.

    Raises:
        UsageError: An episode of a dataset is one of another, with the same records.
    """
    record_by_id: dict[str, tuple[int, str]] = {}
    joined: dict[str, list[RootShard]] = {split: [] for source in sources for split in source.splits}
    for source_number, source in enumerate(sources, 1):
        digest_by_id = _digests(source)
        for episode_id in filter(record_by_id.__contains__, digest_by_id):
            digest, source_path = record_by_id[episode_id]
            if digest == digest_by_id[episode_id] != 0:
                advice = "name each dataset once, or convert one without the episodes of the other first"
                fault = f"has episode {episode_id} as {source_path} has it"
                raise UsageError(f"{source.path}: {fault}; {advice}, with --episodes")
        prefix = ""
        while any(prefix + episode_id in record_by_id for episode_id in digest_by_id):
            prefix = f"{source_number}+{prefix}"
        record_by_id |= {prefix + episode_id: (digest, source.path) for episode_id, digest in digest_by_id.items()}
        for split, shards in source.shards_of.items():
            joined[split] += (replace(shard, prefix=prefix, name=prefix + shard.name) for shard in shards)
    return {
        split: tuple(replace(shard, index=number, count=len(shards)) for number, shard in enumerate(shards))
        for split, shards in sorted(joined.items())
    }


def _digests(source: RootSource) -> dict[str, int]:
    """Return a hash over all records of each episode by its id, 0 where it has no picture."""
    digests: dict[str, int] = {}
    for tables in source.tables.values():
        hashes, record_bytes = (tables.records.column(name).to_numpy() for name in ("xxh3_64", "num_bytes"))
        for row in tables.episodes.select(["episode_id", "first_record", "num_records"]).to_pylist():
            record_rows = slice(row["first_record"], row["first_record"] + row["num_records"])
            has_picture = (record_bytes[record_rows] != len(HOLE)).any()
            digests[row["episode_id"]] = xxhash.xxh3_64_intdigest(hashes[record_rows].tobytes()) if has_picture else 0
    return digests
