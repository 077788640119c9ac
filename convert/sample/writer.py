"""Generated datasets on disk: written next to their location, and moved there when complete."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow_datasets as tfds

from convert.errors import ConflictError, ConvertError, UsageError
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
        ConvertError: Writing failed; complete datasets stay.
    """
    parameters = {"episodes": episodes, "steps": steps, "seed": seed, "shards": shards, "vary_steps": vary_steps}
    planned: dict[Path, _Dataset] = {}
    for spec in datasets:
        dataset_path = Path(output, spec.tfds_name, spec.version)
        if dataset_path in planned:
            raise UsageError(f"{dataset_path}: two of the datasets would be written there; name only one")
        planned[dataset_path] = _Dataset(SampleSource(spec), dataset_path, parameters)
    reports = {dataset_path: dataset.existing(overwrite=overwrite) for dataset_path, dataset in planned.items()}
    pending = [dataset for dataset_path, dataset in planned.items() if reports[dataset_path] is None]
    stop_event = threading.Event()
    with contextlib.ExitStack() as folders:
        for dataset in pending:
            dataset.prepare(folders)
        with ThreadPoolExecutor(jobs or usable_processors()) as thread_pool, contextlib.ExitStack() as exit_stack:
            exit_stack.callback(stop_event.set)
            progress = exit_stack.enter_context(Progress(len(pending), "datasets", stream=sys.stderr, label="draw"))
            for report in thread_pool.map(lambda dataset: dataset.write(stop_event), pending):
                reports[Path(report.directory)] = report
                progress.advance()
    return [report for report in reports.values() if report]


class _Dataset:
    """One dataset to write: its directory, and the temporary directory next to it."""

    def __init__(self, source: SampleSource, dataset_path: Path, parameters: Mapping[str, int]) -> None:
        self._source, self._path, self._given = source, dataset_path, parameters
        self._parameters = {"format": SAMPLE_FORMAT, **parameters, "content": source.content}
        self._partial = dataset_path

    def existing(self, *, overwrite: bool) -> SampleReport | None:
        """Return the report of an existing sample with the same parameters, None if the sample must be written."""
        if not self._path.exists():
            return None
        try:
            stored_parameters = json.loads((self._path / SAMPLE_FILE).read_text(encoding="utf-8"))
            splits = stored_parameters.pop("splits")
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            raise ConflictError(
                f"{self._path} exists and is not a sample (no usable {SAMPLE_FILE}), so it is left alone; "
                "choose another output, or remove it"
            ) from None
        requested = self._parameters
        if stored_parameters == requested:
            return self._report("up to date", splits)
        if overwrite:
            return None
        details = [
            f"{name} {stored_parameters.get(name)} (asked for: {requested[name]})"
            for name in requested
            if stored_parameters.get(name) != requested[name]
        ]
        raise ConflictError(f"{self._path} is a sample with {', '.join(details)}; --overwrite replaces it")

    def prepare(self, folders: contextlib.ExitStack) -> None:
        """Create the temporary directory, and remove those of killed processes."""
        parent = self._path.parent
        try:
            parent.mkdir(parents=True, exist_ok=True)
            self._partial = folders.enter_context(stage(parent, prefix=f".{self._path.name}-")) / self._path.name
            self._partial.mkdir()
        except OSError as error:
            raise UsageError(f"{error.filename or parent}: cannot be written to: {error.strerror}") from None

    def write(self, stop_event: threading.Event) -> SampleReport:
        """Write files and metadata and move the dataset to its location, unless ``stop_event`` is set first."""
        spec = self._source.spec
        try:
            shards, splits = {}, {}
            for split in spec.splits or ("train",):
                lengths = self._lengths(split)
                shards[split] = counts, num_bytes = self._write_split(split, lengths, stop_event)
                splits[split] = {"episodes": sum(counts), "steps": sum(lengths), "bytes": num_bytes}
            write_metadata(
                self._partial,
                dataset_name=spec.tfds_name,
                version=spec.version,
                features=self._source.tree,
                splits=shards,
            )
            content = json.dumps({**self._parameters, "splits": splits}, indent=1)
            (self._partial / SAMPLE_FILE).write_text(content + "\n", encoding="utf-8")
            shutil.rmtree(self._path, ignore_errors=True)
            self._partial.rename(self._path)
        except OSError as error:
            raise ConvertError(f"{self._path}: could not be written: {error.strerror or error}") from None
        return self._report("written", splits)

    def _write_split(self, split: str, lengths: list[int], stop_event: threading.Event) -> tuple[list[int], int]:
        """Write the files of a split; return the episodes of each file, and the bytes of all records."""
        num_bytes, seed, file_prefix = 0, self._given["seed"], f"{self._source.spec.tfds_name}-{split}.tfrecord"
        episodes_by_file = np.array_split(np.arange(len(lengths)), min(self._given["shards"], len(lengths)))
        for file_number, episodes in enumerate(episodes_by_file):
            with (self._partial / f"{file_prefix}-{file_number:05d}-of-{len(episodes_by_file):05d}").open(
                "xb"
            ) as shard_file:
                for episode in episodes.tolist():
                    if stop_event.is_set():
                        raise ConvertError(f"{self._path}: stopped")
                    drawn_episode = Episode(
                        self._source, split, episode_number=episode, num_steps=lengths[episode], seed=seed
                    )
                    record = encode_example(drawn_episode.columns())
                    shard_file.write(encode_tfrecord(record))
                    num_bytes += len(record)
        return [len(episodes) for episodes in episodes_by_file], num_bytes

    def _report(self, status: Literal["written", "up to date"], splits: dict[str, dict[str, int]]) -> SampleReport:
        return SampleReport(dataset=self._source.spec.name, directory=str(self._path), status=status, splits=splits)

    def _lengths(self, split: str) -> list[int]:
        """Return the number of steps of each episode of a split."""
        num_steps, episodes = self._given["steps"], self._given["episodes"]
        lengths = np.full(episodes if split == "train" else max(1, episodes // 2), num_steps)
        if self._given["vary_steps"]:
            generator = seeded(self._given["seed"], self._source.spec.tfds_name, split)
            lengths = generator.integers(1, num_steps, len(lengths), endpoint=True)
            lengths[1:2], lengths[2:3] = 0, lengths[2:3].clip(max=4)
        return lengths.tolist()


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
    description_text = f"Generated sample with the features of {dataset_name}."
    tfds.folder_dataset.write_metadata(
        data_dir=folder,
        features=features,
        split_infos=split_infos,
        version=version,
        check_data=False,
        description=description_text,
    )
