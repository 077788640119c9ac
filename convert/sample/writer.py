"""Generated datasets on disk: written as shards by several processes, and moved to their location when complete."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil

from convert.errors import ConflictError, ConvertError, UsageError
from convert.registry.registry import DatasetSpec
from convert.sample.episode import SampleSource, make_episode, prepare_source, read_feature_tree
from convert.sample.record import encode_example
from convert.source.rlds.tfrecord import encode_tfrecord

SAMPLE_FORMAT = 2
"""Raised when the same parameters give other files; samples of another format are out of date."""
SAMPLE_FILE = "sample.json"
"""File with the parameters, beside dataset_info.json. A directory without it is never replaced."""


@dataclass(frozen=True, kw_only=True)
class SampleReport:
    """Result for one dataset, written now or found up to date; ``splits`` has episodes, steps and record bytes."""

    dataset: str
    directory: str
    status: Literal["written", "up to date"]
    splits: dict[str, dict[str, int]]


@dataclass(kw_only=True)
class _Shard:
    """One TFRecord file to write: numbers and lengths of its episodes, and the bytes of its records once written."""

    source: SampleSource
    path: Path
    split: str
    episodes: tuple[tuple[int, int], ...]
    seed: int
    size: int = 0

    @property
    def cost(self) -> int:
        """Return the work in bytes of pixels; a scene costs as much as about three large frames."""
        return sum(self.source.cost * steps + 3_000_000 for _, steps in self.episodes)


@dataclass(frozen=True, kw_only=True)
class _Job:
    """One dataset to write: its directory, the temporary one beside it, and its shards."""

    spec: DatasetSpec
    directory: Path
    partial: Path
    parameters: dict[str, Any]
    shards: list[_Shard]


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
    progress: Callable[[float], object] = lambda _: None,
) -> list[SampleReport]:
    """Write a TFDS directory ``output/<tfds_name>/<version>`` for each dataset.

    The files depend only on the arguments and the dataset, byte for byte: not on ``jobs``, the other datasets, or
    earlier files. A dataset appears under its name when it is complete.

    Args:
        output: Root folder; created if it does not exist.
        datasets: Entries of the registry; ``configs/features`` must have their features.
        episodes: Episodes of the train split; other published splits get half as many, at least one.
        steps: Steps of every episode.
        seed: Seed from 0; other seeds give other scenes, texts and numbers.
        shards: Files of a split, if it has as many episodes.
        jobs: Processes; default one per CPU. 1 does all work in this process; more need a main guard in a script, as
            ``multiprocessing`` requires.
        vary_steps: Vary lengths from 1 to ``steps``; the second episode is empty, the third has fewer than five steps.
        overwrite: Replace samples with other parameters instead of raising.
        progress: Called after each file with the completed share, from 0 to 1.

    Returns:
        One report for each dataset, in the order given.

    Raises:
        UsageError: A dataset twice or without known features, or an output that is not writable.
        ConflictError: Another file or dataset has the location of a dataset. Nothing was written.
        ConvertError: Writing failed; complete datasets stay.
    """
    parameters = {"episodes": episodes, "steps": steps, "seed": seed, "shards": shards, "vary_steps": vary_steps}
    planned: dict[Path, _Job] = {}
    for spec in datasets:
        directory = Path(output, spec.tfds_name, spec.version)
        if directory in planned:
            raise UsageError(f"{directory}: two of the datasets would be written there; name only one")
        planned[directory] = _plan(spec, directory, parameters)
    reports = {directory: _existing(job, overwrite=overwrite) for directory, job in planned.items()}
    wanted = [job for job in planned.values() if reports[job.directory] is None]
    try:
        for job in wanted:
            _prepare_directory(job)
        for job in _write(wanted, jobs=jobs or len(os.sched_getaffinity(0)), progress=progress):
            reports[job.directory] = _finish(job)
    finally:
        for job in wanted:
            shutil.rmtree(job.partial, ignore_errors=True)
            with contextlib.suppress(OSError):
                job.partial.parent.rmdir()
    return [report for report in reports.values() if report]


def _plan(spec: DatasetSpec, directory: Path, given: dict[str, Any]) -> _Job:
    source = prepare_source(spec)
    partial = directory.parent / f".{directory.name}.{os.getpid()}.partial"
    parameters = {"format": SAMPLE_FORMAT, **given, "content": source.content}
    shards = []
    for split in spec.splits or ("train",):
        count = given["episodes"] if split == "train" else max(1, given["episodes"] // 2)
        lengths = _lengths(count, spec.tfds_name, split, given)
        files = min(given["shards"], count)
        for number, members in enumerate(np.array_split(np.arange(count), files)):
            path = partial / f"{spec.tfds_name}-{split}.tfrecord-{number:05d}-of-{files:05d}"
            episodes = tuple((int(episode), lengths[episode]) for episode in members)
            shards.append(_Shard(source=source, path=path, split=split, episodes=episodes, seed=given["seed"]))
    return _Job(spec=spec, directory=directory, partial=partial, parameters=parameters, shards=shards)


def _lengths(count: int, tfds_name: str, split: str, given: dict[str, Any]) -> list[int]:
    """Return the number of steps of each episode of a split."""
    steps = given["steps"]
    if not given["vary_steps"]:
        return [steps] * count
    rng = np.random.default_rng([given["seed"], *(zlib.crc32(name.encode()) for name in (tfds_name, split))])
    lengths: list[int] = rng.integers(1, steps, count, endpoint=True).tolist()
    if count > 1:
        lengths[1] = 0
    if count > 2:
        lengths[2] = min(4, lengths[2])
    return lengths


def _existing(job: _Job, *, overwrite: bool) -> SampleReport | None:
    """Return the report of an existing sample with the same parameters, None if the sample must be written."""
    if not job.directory.exists():
        return None
    try:
        found = json.loads((job.directory / SAMPLE_FILE).read_text(encoding="utf-8"))
        splits = found.pop("splits")
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise ConflictError(
            f"{job.directory} exists and is not a sample (no usable {SAMPLE_FILE}), so it is left alone; "
            "choose another output, or remove it"
        ) from None
    if found == job.parameters:
        return SampleReport(dataset=job.spec.name, directory=str(job.directory), status="up to date", splits=splits)
    if overwrite:
        return None
    differ = [key for key in {**job.parameters, **found} if found.get(key) != job.parameters.get(key)]
    details = ", ".join(
        "other content" if key == "content" else f"{key} {found.get(key)} (asked for: {job.parameters.get(key)})"
        for key in differ
    )
    raise ConflictError(f"{job.directory} is a sample with {details}; --overwrite replaces it")


def _prepare_directory(job: _Job) -> None:
    """Create the temporary directory, and remove those of processes that no longer run."""
    try:
        for left in job.directory.parent.glob(f".{job.directory.name}.*.partial"):
            pid = left.name.split(".")[-2]
            if not (pid.isdigit() and psutil.pid_exists(int(pid))):
                shutil.rmtree(left, ignore_errors=True)
        job.partial.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"{error.filename or job.partial}: cannot be written to: {error.strerror}") from None


def _write(wanted: Sequence[_Job], *, jobs: int, progress: Callable[[float], object]) -> Iterator[_Job]:
    """Write all shards, the costliest first; yield each complete dataset."""
    work = sorted((shard for job in wanted for shard in job.shards), key=lambda shard: -shard.cost)
    unfinished = {job.partial: len(job.shards) for job in wanted}
    total, finished = sum(shard.cost for shard in work), 0
    with contextlib.ExitStack() as stack:
        results: Iterator[int] = map(_write_shard, work)
        if jobs > 1 and len(work) > 1:
            # Fork copies locks held by the caller's threads; spawn does not.
            context = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(min(jobs, len(work)), mp_context=context, initializer=_leave_with_parent)
            stack.callback(pool.shutdown, cancel_futures=True)
            results = pool.map(_write_shard, work)
        try:
            for shard, size in zip(work, results, strict=True):
                shard.size = size
                unfinished[shard.path.parent] -= 1
                yield from (job for job in wanted if job.partial == shard.path.parent and not unfinished[job.partial])
                finished += shard.cost
                progress(finished / total)
        except BrokenProcessPool:
            raise ConvertError(
                "a worker process died, perhaps for lack of memory; try again with fewer --jobs"
            ) from None


def _leave_with_parent() -> None:
    """End a worker quietly on Ctrl-C, and when its parent was killed, which the pool does not notice by itself."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _write_shard(shard: _Shard) -> int:
    """Write one file and return the bytes of its records, without their framing."""
    size = 0
    try:
        with open(shard.path, "xb") as file:
            for episode, steps in shard.episodes:
                columns = make_episode(shard.source, split=shard.split, episode=episode, steps=steps, seed=shard.seed)
                record = encode_example(columns)
                file.write(encode_tfrecord(record))
                size += len(record)
    except OSError as error:
        raise ConvertError(f"{shard.path}: could not be written: {error.strerror or error}") from None
    return size


def _finish(job: _Job) -> SampleReport:
    """Add the metadata and move the dataset to its location."""
    splits: dict[str, dict[str, int]] = {}
    lengths: dict[str, list[int]] = {}
    for shard in job.shards:
        lengths.setdefault(shard.split, []).append(len(shard.episodes))
        split = splits.setdefault(shard.split, {"episodes": 0, "steps": 0, "bytes": 0})
        split["episodes"] += len(shard.episodes)
        split["steps"] += sum(steps for _, steps in shard.episodes)
        split["bytes"] += shard.size
    try:
        write_metadata(
            job.partial,
            name=job.spec.tfds_name,
            version=job.spec.version,
            features=read_feature_tree(job.spec.tfds_name),
            splits={name: (lengths[name], split["bytes"]) for name, split in splits.items()},
        )
        content = json.dumps({**job.parameters, "splits": splits}, indent=1)
        (job.partial / SAMPLE_FILE).write_text(content + "\n", encoding="utf-8")
        if job.directory.exists():
            shutil.rmtree(job.directory)
        job.partial.rename(job.directory)
    except OSError as error:
        raise ConvertError(f"{job.directory}: could not be written: {error.strerror or error}") from None
    return SampleReport(dataset=job.spec.name, directory=str(job.directory), status="written", splits=splits)


def write_metadata(
    folder: Path, *, name: str, version: str, features: Any, splits: Mapping[str, tuple[Sequence[int], int]]
) -> None:
    """Write ``features.json`` and ``dataset_info.json`` of a TFDS directory.

    Args:
        folder: Directory with the TFRecord files.
        name: TFDS name of the dataset.
        version: Version of the dataset.
        features: Feature tree as a TFDS connector.
        splits: Number of episodes of each shard, and the bytes of all records, by split.
    """
    import tensorflow_datasets as tfds

    infos = [
        tfds.core.SplitInfo(
            name=split,
            shard_lengths=list(lengths),
            num_bytes=size,
            filename_template=tfds.core.ShardedFileTemplate(
                data_dir=folder, dataset_name=name, split=split, filetype_suffix="tfrecord"
            ),
        )
        for split, (lengths, size) in splits.items()
    ]
    tfds.folder_dataset.write_metadata(
        data_dir=folder,
        features=features,
        split_infos=infos,
        version=version,
        check_data=False,
        description=f"Generated sample with the features of {name}.",
    )
