"""Generated datasets on disk: written next to their location, and moved there when complete."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow_datasets as tfds

from convert.errors import ConflictError, UsageError
from convert.registry.registry import DatasetSpec
from convert.sample.episode import Episode, seeded
from convert.sample.record import encode_example
from convert.sample.source import SampleSource
from convert.source.rlds.record_files import encode_tfrecord
from convert.storage.staging import stage
from stream.base.machine import usable_processors
from stream.base.progress import Progress

SAMPLE_FORMAT = 3
"""Raised when the same parameters give other files; samples of another format are out of date."""
SAMPLE_FILE = "sample.json"
"""File with the parameters, next to dataset_info.json. A directory without it is never replaced."""


@dataclass(frozen=True, kw_only=True)
class SampleReport:
    """Result for one dataset, written now or found up to date; ``splits`` has episodes, steps and record bytes."""

    dataset: str
    directory: str
    status: Literal["written", "up to date"]
    splits: dict[str, dict[str, int]]


def make_sample(
    output: str | os.PathLike[str],
    datasets: Sequence[DatasetSpec],
    *,
    episodes: int = 4,
    steps: int = 30,
    seed: int = 0,
    shards: int = 2,
    jobs: int | None = None,
    vary_steps: bool = False,
    overwrite: bool = False,
) -> list[SampleReport]:
    """Write a TFDS directory ``output/<tfds_name>/<version>`` for each dataset and return a report of each.

    The files depend only on the arguments and the dataset, byte for byte: not on ``jobs``, the other datasets, or
    earlier files. A dataset appears under its name when it is complete.

    Args:
        output: Root folder; created if it does not exist.
        datasets: Entries of the registry; ``configs/features`` must have their features.
        episodes: Episodes of the train split; other published splits get half as many, at least one.
        steps: Steps of every episode.
        seed: Seed from 0; other seeds give other scenes, texts and numbers.
        shards: Files of a split, if it has as many episodes.
        jobs: Datasets that are written at the same time; default one per CPU.
        vary_steps: Vary lengths from 1 to ``steps``; the second episode is empty, the third has fewer than five steps.
        overwrite: Replace samples with other parameters instead of raising.

    Raises:
        UsageError: A dataset twice or without known features, or an output that is not writable.
        ConflictError: Another file or dataset has the location of a dataset. Nothing was written.
    """
    parameters = {"episodes": episodes, "steps": steps, "seed": seed, "shards": shards, "vary_steps": vary_steps}
    sources = {Path(output, spec.tfds_name, spec.version): SampleSource(spec) for spec in datasets}
    if len(sources) < len(datasets):
        raise UsageError("two of the datasets would be written to the same folder; name only one")
    reports = {path: _existing(path, source, parameters, overwrite=overwrite) for path, source in sources.items()}
    pending = [path for path, report in reports.items() if report is None]
    try:
        Path(output).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{error.filename}: cannot be written to: {error.strerror}") from None
    with (
        Progress(len(pending), "datasets", stream=sys.stderr, label="draw") as progress,
        ThreadPoolExecutor(jobs or usable_processors()) as thread_pool,
    ):
        writes = thread_pool.map(partial(_write, parameters=parameters), pending, map(sources.__getitem__, pending))
        for path, report in zip(pending, writes, strict=True):
            reports[path] = report
            progress.advance()
    return [report for report in reports.values() if report]


def _existing(
    path: Path, source: SampleSource, parameters: Mapping[str, int], *, overwrite: bool
) -> SampleReport | None:
    """Return the report of an existing sample with the same parameters, None if the sample must be written."""
    if not path.exists():
        return None
    try:
        stored_parameters = json.loads((path / SAMPLE_FILE).read_text(encoding="utf-8"))
        splits = stored_parameters.pop("splits")
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise ConflictError(
            f"{path} exists and is not a sample (no usable {SAMPLE_FILE}), so it is left alone; choose another output, "
            "or remove it"
        ) from None
    requested = _all_parameters(source, parameters)
    if stored_parameters == requested:
        return SampleReport(dataset=source.spec.name, directory=str(path), status="up to date", splits=splits)
    if overwrite:
        return None
    details = [
        f"{name} {stored_parameters.get(name)} (asked for: {value})"
        for name, value in requested.items()
        if stored_parameters.get(name) != value
    ]
    raise ConflictError(f"{path} is a sample with {', '.join(details)}; --overwrite replaces it")


def _all_parameters(source: SampleSource, parameters: Mapping[str, int]) -> dict[str, Any]:
    return {"format": SAMPLE_FORMAT, **parameters, "content": source.content}


def _write(path: Path, source: SampleSource, *, parameters: Mapping[str, int]) -> SampleReport:
    """Write the files of a dataset and move them to their location; files of a killed process are removed."""
    spec, shards, splits = source.spec, {}, {}
    path.parent.mkdir(parents=True, exist_ok=True)
    with stage(path.parent, prefix=f".{path.name}-") as staging_folder:
        folder = staging_folder / path.name
        folder.mkdir()
        for split in spec.splits or ("train",):
            lengths = _lengths(spec.tfds_name, split, parameters)
            shards[split] = counts, num_bytes = _write_split(folder, source, split, lengths, parameters)
            splits[split] = {"episodes": sum(counts), "steps": sum(lengths), "bytes": num_bytes}
        write_metadata(folder, dataset_name=spec.tfds_name, version=spec.version, features=source.tree, splits=shards)
        content = json.dumps({**_all_parameters(source, parameters), "splits": splits}, indent=1)
        (folder / SAMPLE_FILE).write_text(content + "\n", encoding="utf-8")
        shutil.rmtree(path, ignore_errors=True)
        folder.rename(path)
    return SampleReport(dataset=spec.name, directory=str(path), status="written", splits=splits)


def _lengths(dataset_name: str, split: str, parameters: Mapping[str, int]) -> list[int]:
    """Return the number of steps of each episode of a split."""
    num_steps, episodes = parameters["steps"], parameters["episodes"]
    lengths = np.full(episodes if split == "train" else max(1, episodes // 2), num_steps)
    if parameters["vary_steps"]:
        generator = seeded(parameters["seed"], dataset_name, split)
        lengths = generator.integers(1, num_steps, len(lengths), endpoint=True)
        lengths[1:2], lengths[2:3] = 0, lengths[2:3].clip(max=4)
    return lengths.tolist()


def _write_split(
    folder: Path, source: SampleSource, split: str, lengths: list[int], parameters: Mapping[str, int]
) -> tuple[list[int], int]:
    """Write the files of a split; return the episodes of each file, and the bytes of all records."""
    num_bytes, file_prefix = 0, f"{source.spec.tfds_name}-{split}.tfrecord"
    episodes_by_file = np.array_split(np.arange(len(lengths)), min(parameters["shards"], len(lengths)))
    for file_number, episodes in enumerate(episodes_by_file):
        with (folder / f"{file_prefix}-{file_number:05d}-of-{len(episodes_by_file):05d}").open("xb") as shard_file:
            for number in episodes.tolist():
                episode = Episode(
                    source, split, episode_number=number, num_steps=lengths[number], seed=parameters["seed"]
                )
                record = encode_example(episode.columns())
                shard_file.write(encode_tfrecord(record))
                num_bytes += len(record)
    return [len(episodes) for episodes in episodes_by_file], num_bytes


def write_metadata(
    folder: Path, *, dataset_name: str, version: str, features: Any, splits: Mapping[str, tuple[Sequence[int], int]]
) -> None:
    """Write ``features.json`` and ``dataset_info.json`` of a TFDS directory.

    ``splits`` has the number of episodes of each shard, and the bytes of all records; ``features`` is a connector.
    """
    template = tfds.core.ShardedFileTemplate(data_dir=folder, dataset_name=dataset_name, filetype_suffix="tfrecord")
    split_infos = [
        tfds.core.SplitInfo(split, list(lengths), num_bytes, template.replace(split=split))
        for split, (lengths, num_bytes) in splits.items()
    ]
    tfds.folder_dataset.write_metadata(
        data_dir=folder,
        features=features,
        split_infos=split_infos,
        version=version,
        check_data=False,
        description=f"Generated sample with the features of {dataset_name}.",
    )
