"""Overview of a converted root, from its manifests, and the episodes that filters leave, from its index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stream.base.errors import FormatError
from stream.cache.in_place import open_catalog
from stream.format.catalog import Dataset
from stream.format.index import SplitIndex, open_index
from stream.order.choices import Samples
from stream.order.filters import Filter, parse_filters, settle_missing
from stream.storage.remote import CachedRoot

_CHUNK = 1 << 20
"""Samples that a filter looks at together."""


@dataclass(frozen=True)
class Overview:
    """Content of a root.

    Attributes:
        datasets: Datasets with a complete conversion, in their newest version.
        incomplete: Names of datasets without one.
        damaged: Errors of manifests that cannot be used.
    """

    datasets: tuple[Dataset, ...]
    incomplete: tuple[str, ...]
    damaged: tuple[str, ...]


@dataclass(frozen=True)
class Kept:
    """Samples and episodes that filters leave of a dataset.

    Attributes:
        samples: Count of the samples that fulfil all conditions.
        episode_ids: Ids of the episodes with such samples, of all splits.
    """

    samples: int
    episode_ids: tuple[str, ...]


def open_root(root: str | Path | CachedRoot, names: Sequence[str] | None = None) -> Overview:
    """Open the datasets of a root.

    Args:
        root: Folder that ``convert.run`` wrote.
        names: Names of datasets, ``bridge`` or ``bridge:0.1.0``; all of the root if None.

    Raises:
        ArgumentError: The root or a dataset does not exist, or nothing in the root is complete.
    """
    catalog = open_catalog(root)
    catalog.check_converted()
    complete = catalog.complete
    datasets, damaged = [], []
    for name in complete if names is None else names:
        try:
            dataset = catalog.open(name)
            _ = dataset.fields  # raises now
            datasets.append(dataset)
        except FormatError as error:
            damaged.append(str(error))
    incomplete = () if names else tuple(sorted(set(catalog.versions) - set(complete)))
    return Overview(tuple(datasets), incomplete, tuple(damaged))


def describe(dataset: Dataset) -> dict[str, Any]:
    """Return what a dataset holds, as a small JSON object.

    ``hours`` are None if its rate is unknown, ``codec`` if a camera measures depth, and ``instruction`` unless all
    episodes have the same, which is empty where none has one.
    """
    manifest, fields = dataset.manifest, dataset.fields
    rate = fields.control_frequency
    tables = sum(table.bytes for entry in manifest.splits.values() for table in entry.index.values())
    return {
        "dataset": dataset.name,
        "version": dataset.version,
        "layout": fields.layout,
        "splits": {name: entry.episodes for name, entry in manifest.splits.items()},
        "episodes": manifest.episodes,
        "steps": manifest.steps,
        "hours": None if rate is None else manifest.steps / rate / 3600,
        "samples": manifest.records if fields.layout == "pairs" else manifest.steps,
        "bytes": tables + sum(int(shards.sizes.sum()) for shards in dataset.shards.values()),
        "rate": rate,
        "robot": manifest.spec.get("robot"),
        "license": manifest.spec.get("license"),
        "cameras": {
            camera.name: {
                "role": camera.role,
                "sizes": [f"{height}x{width}" for height, width in camera.sizes],
                "depth": camera.is_depth,
                "codec": None if camera.is_depth else camera.codec,
            }
            for camera in fields.stored_cameras
        },
        "left_out": {reason: count for reason, count in manifest.left_out.items() if count},
        "nonfinite_episodes": manifest.nonfinite_episodes,
        "instruction": manifest.instruction,
        "fetched_shards": None if dataset.fetched is None else len(dataset.fetched.shards),
        "shards": sum(len(shards) for shards in dataset.shards.values()),
    }


def apply_filters(datasets: Sequence[Dataset], conditions: Sequence[tuple[str, str, Any]]) -> dict[str, Kept | None]:
    """Return what filters leave of each dataset, None where it lacks a column.

    Args:
        datasets: Datasets.
        conditions: ``(column, operator, value)``, as in ``filters`` of ``make_loader``.

    Raises:
        ArgumentError: A condition is malformed, cannot be compared, or no dataset has its column.
        FormatError: An index is damaged.
    """
    names = [dataset.name for dataset in datasets]
    filters = parse_filters(list(conditions), names)
    _, stays = settle_missing(filters, datasets, "drop")
    return {
        dataset.name: _keep(dataset, filters[dataset.name]) if has_columns else None
        for dataset, has_columns in zip(datasets, stays, strict=True)
    }


def _keep(dataset: Dataset, filters: Sequence[Filter]) -> Kept:
    samples: Samples = "records" if dataset.fields.layout == "pairs" else "steps"
    count, ids = 0, list[str]()
    for split in dataset.manifest.splits:
        index = open_index(dataset, split, member=0)
        named = np.zeros(len(index.episodes), bool)
        for rows, kept in _chunks(index, filters, samples):
            count += int(kept.sum())
            named[index.table(samples).array("episode")[rows][kept]] = True
        ids += index.episodes.take_texts("episode_id", np.flatnonzero(named))
    return Kept(count, tuple(ids))


def _chunks(index: SplitIndex, filters: Sequence[Filter], samples: Samples) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield slices of the samples, and which of them fulfil all filters."""
    for start in range(0, len(index.table(samples)), _CHUNK):
        rows = slice(start, min(start + _CHUNK, len(index.table(samples))))
        yield rows, np.logical_and.reduce([each.select(index, rows, samples) for each in filters])


def list_episodes(kept: Mapping[str, Kept | None]) -> dict[str, list[str]]:
    """Return the lists of ``episodes`` of ``make_loader``; it has no list without episodes."""
    return {name: list(each.episode_ids) for name, each in kept.items() if each is not None and each.episode_ids}
