"""Several converted datasets as one: their shards one after another, in the order in which they are named."""

from __future__ import annotations

import hashlib
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import xxhash

from convert.errors import UsageError
from convert.source.root.source import RootShard, RootSource
from stream.format.names import HOLE

_FREE = ("name", "tfds_name", "version", "offset", "splits", "steps_per_episode", "leave_out", "wide", "sources")
_TEXTS = ("description", "warning", "license")
"""Keys of a registry entry that may differ: those that are the first dataset's or counted, and texts to show."""
_ABSENT = "absent"


def join_sources(sources: Sequence[RootSource]) -> RootSource:
    """Return one dataset of several, which have the same cameras, columns, rate and meaning of numbers.

    A label that only some have is missing in the others. Source files get a number in front of their names where the
    ids of their episodes are taken: ``2+`` for the second dataset.

    Raises:
        UsageError: They differ; names the first difference. Or an episode is in two of them.
    """
    first, *others = sources
    for other in others:
        where = f"{first.path} and {other.path} are not one dataset"
        if difference := _difference("", _compared(first, other), _compared(other, first)):
            raise UsageError(f"{where}: {difference}; convert them apart")
    splits = sorted({split for source in sources for split in source.splits})
    renamed = _distinct(sources)
    shards: dict[str, tuple[RootShard, ...]] = {}
    for split in splits:
        found = [shard for each in renamed for shard in each.get(split, ())]
        shards[split] = tuple(replace(shard, index=index, count=len(found)) for index, shard in enumerate(found))
    entry = {**first.entry, "splits": {name: sum(map(_episodes, found)) for name, found in shards.items()}}
    for key in _TEXTS:
        entry[key] = "; ".join(dict.fromkeys(text for each in sources if (text := each.entry.get(key)))) or None
    entry["quirks"] = list(dict.fromkeys(text for each in sources for text in each.entry["quirks"]))
    lengths = [length for found in shards.values() for shard in found for length in shard.lengths]
    entry["steps_per_episode"] = round(sum(lengths) / len(lengths), 2) or None
    return replace(
        first,
        path="+".join(each.path for each in sources),
        fingerprint=hashlib.sha256("".join(each.fingerprint for each in sources).encode()).hexdigest(),
        features=dict(ChainMap(*(dict(each.features) for each in sources))),
        splits={name: tuple(map(_episodes, found)) for name, found in shards.items()},
        entry=entry,
        remarks=tuple(dict.fromkeys(remark for each in sources for remark in each.remarks)),
        shards_of=shards,
        tables={},
    )


def _episodes(shard: RootShard) -> int:
    return len(shard.episodes)


def _compared(source: RootSource, other: RootSource) -> dict[str, Any]:
    """Return everything of a dataset in which another may not differ."""
    labels = source.labels ^ other.labels
    features = {
        path: {"dtype": each.dtype, "shape": list(each.shape), "sequences": len(each.sequences)}
        for path, each in source.features.items()
        if path not in labels
    }
    entry = {key: value for key, value in source.entry.items() if key not in (*_FREE, *_TEXTS, "quirks")}
    return {"layout": source.layout, "cameras": entry.pop("cameras"), "columns": features, **entry}


def _difference(name: str, one: Any, other: Any) -> str | None:
    """Return where two values differ first and how, None if they do not."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        pairs = [(f"{name}: {key}" if name else key, key) for key in dict.fromkeys([*one, *other])]
        found = (_difference(path, one.get(key, _ABSENT), other.get(key, _ABSENT)) for path, key in pairs)
        return next(filter(None, found), None)
    if one == other:
        return None
    shown = ["there" if isinstance(value, Mapping) else str(value)[:80] for value in (one, other)]
    return f"{name} is {shown[0]} in the first and {shown[1]} in the other"


def _distinct(sources: Sequence[RootSource]) -> list[dict[str, tuple[RootShard, ...]]]:
    """Return the shards of each dataset by split, with source files named so that no two episodes have one id.

    Raises:
        UsageError: An episode of a dataset is one of another, with the same records.
    """
    known: dict[str, tuple[int, str]] = {}
    found = []
    for number, source in enumerate(sources, 1):
        ids = _digests(source)
        for name in filter(known.__contains__, ids):
            record, path = known[name]
            if record == ids[name] != 0:
                raise UsageError(
                    f"{source.path}: has episode {name} as {path} has it; name each dataset once, or convert one "
                    "without the episodes of the other first, with --episodes"
                )
        prefix = ""
        while any(prefix + name in known for name in ids):
            prefix = f"{number}+{prefix}"
        known |= {prefix + name: (record, source.path) for name, record in ids.items()}
        found.append(
            {
                split: tuple(replace(shard, prefix=prefix, name=prefix + shard.name) for shard in shards)
                for split, shards in source.shards_of.items()
            }
        )
    return found


def _digests(source: RootSource) -> dict[str, int]:
    """Return a hash over all records of each episode by its id, 0 where it has no picture."""
    found: dict[str, int] = {}
    for tables in source.tables.values():
        names = ("episode_id", "first_record", "num_records")
        hashes, sizes = (tables.records.column(name).to_numpy() for name in ("xxh3_64", "num_bytes"))
        for name, first, count in zip(*(tables.episodes.column(each).to_pylist() for each in names), strict=True):
            here = slice(first, first + count)
            has_picture = (sizes[here] != len(HOLE)).any()
            found[name] = xxhash.xxh3_64_intdigest(hashes[here].tobytes()) if has_picture else 0
    return found
