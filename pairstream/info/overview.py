"""Overview of a converted root, from its manifests, and the episodes that filters leave, from its index."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stream.base.errors import FormatError
from stream.cache.in_place import open_catalog
from stream.format.catalog import Catalog, Dataset
from stream.format.index import SplitIndex, open_index
from stream.sample.choices import Samples
from stream.sample.filters import Filter, parse_conditions, settle_missing
from stream.storage.remote import CachedRoot

_CHUNK = 1 << 20
"""Samples that a filter reads together."""


class Overview(NamedTuple):
    """Content of a root.

    Attributes:
        catalog: Datasets below the root.
        datasets: Datasets with a complete conversion, in their newest version.
        incomplete: Names of datasets without one.
        damaged: Errors of manifests that cannot be used, by dataset.
    """

    catalog: Catalog
    datasets: tuple[Dataset, ...]
    incomplete: tuple[str, ...]
    damaged: dict[str, str]


class Kept(NamedTuple):
    """Count of the samples of a dataset that fulfil all filters, and ids of their episodes, of all splits."""

    samples: int
    episode_ids: tuple[str, ...]


def open_root(root: str | Path | CachedRoot, dataset_names: Sequence[str] | None = None) -> Overview:
    """Open the datasets of a root, or only some of them, by ``name`` or ``name:version``.

    Raises ArgumentError if the root or a dataset does not exist, or nothing in the root is complete.
    """
    catalog = open_catalog(root)
    catalog.check_converted()
    complete = catalog.complete
    datasets, damaged = [], {}
    for dataset_name in complete if dataset_names is None else dataset_names:
        try:
            dataset = catalog.open(dataset_name)
            _ = dataset.fields  # raises now
            datasets.append(dataset)
        except (FormatError, OSError) as error:
            damaged[dataset_name] = str(error)
    incomplete = () if dataset_names else tuple(sorted(set(catalog.versions) - set(complete)))
    return Overview(catalog, tuple(datasets), incomplete, damaged)


def describe(dataset: Dataset) -> dict[str, Any]:
    """Return the content of a dataset, as a small JSON object.

    ``hours`` is None if the rate is unknown, and ``codec`` if a camera measures depth. ``instruction`` is the
    instruction of all episodes, empty if no episode has one, and None if the episodes differ.
    """
    manifest, fields = dataset.manifest, dataset.fields
    rate = fields.control_frequency
    index_bytes = sum(table.bytes for split_entry in manifest.splits.values() for table in split_entry.index.values())
    return {
        "dataset": dataset.name,
        "version": dataset.version,
        "layout": fields.layout,
        "splits": {split_name: split_entry.episodes for split_name, split_entry in manifest.splits.items()},
        "episodes": manifest.episodes,
        "steps": manifest.steps,
        "hours": None if rate is None else manifest.steps / rate / 3600,
        "samples": manifest.records if fields.layout == "pairs" else manifest.steps,
        "bytes": index_bytes + sum(int(shards.sizes.sum()) for shards in dataset.shards.values()),
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
    """Return what filters leave of each dataset, or None if it lacks a column.

    Raises:
        ArgumentError: A condition is malformed, cannot be compared, or no dataset has its column.
        FormatError: An index is damaged.
    """
    filters = parse_conditions(list(conditions), [dataset.name for dataset in datasets])
    _, has_columns = settle_missing(filters, datasets, dict.fromkeys(filters, "drop"))
    return {
        dataset.name: _keep(dataset, filters[dataset.name]) if has_all else None
        for dataset, has_all in zip(datasets, has_columns, strict=True)
    }


def _keep(dataset: Dataset, filters: Sequence[Filter]) -> Kept:
    num_samples, episode_ids = 0, list[str]()
    for split_name in dataset.manifest.splits:
        index = open_index(dataset, split_name, member=0)
        sample_counts = count_samples(index, filters, samples_of(dataset))
        num_samples += int(sample_counts.sum())
        episode_ids += index.episodes.take_texts("episode_id", np.flatnonzero(sample_counts))
    return Kept(num_samples, tuple(episode_ids))


def samples_of(dataset: Dataset) -> Samples:
    """Return the table whose rows are the samples of a dataset."""
    return "records" if dataset.fields.layout == "pairs" else "steps"


def count_samples(index: SplitIndex, filters: Sequence[Filter], samples: Samples) -> np.ndarray:
    """Return the count of each episode's samples that fulfil all filters, int64 [episodes]."""
    num_episodes, episode_numbers = len(index.episodes), index.table(samples).array("episode")
    sample_counts = np.zeros(num_episodes, np.int64)
    for chunk_start in range(0, len(episode_numbers), _CHUNK):
        rows = slice(chunk_start, min(chunk_start + _CHUNK, len(episode_numbers)))
        is_kept = np.logical_and.reduce([condition.select(index, rows, samples) for condition in filters])
        sample_counts += np.bincount(episode_numbers[rows][is_kept], minlength=num_episodes)[:num_episodes]
        index.steps.forget()
        index.records.forget()
    return sample_counts


def list_episodes(kept: Mapping[str, Kept | None]) -> dict[str, list[str]]:
    """Return the lists for ``episodes`` of ``make_loader``, without datasets that have no episode."""
    return {name: list(dataset.episode_ids) for name, dataset in kept.items() if dataset and dataset.episode_ids}


def parse_value(value_text: str) -> Any:
    """Return the typed value of a filter: JSON, such as ``3`` or ``true``, or else the text."""
    try:
        return json.loads(value_text)
    except ValueError:
        return value_text


def human_duration(hours: float) -> str:
    """Return a duration in the unit that suits it.

    >>> human_duration(1234.5), human_duration(0.26), human_duration(0.0058)
    ('1,234 h', '16 min', '21 s')
    """
    seconds = round(3600 * hours)
    if seconds < 100:
        return f"{seconds} s"
    return f"{seconds / 60:,.0f} min" if seconds < 6000 else f"{hours:,.0f} h"
