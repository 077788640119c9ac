"""Generated datasets on disk: planned as shards, written by processes, and moved into place when complete."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import threading
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from convert.errors import ConflictError, ConvertError, UsageError
from convert.registry.registry import DatasetSpec
from convert.sample.episode import (
    SampleSource,
    make_episode,
    prepare_source,
    read_feature_tree,
    read_features_json,
    read_hints,
)
from convert.sample.record import encode_example
from convert.source.tfrecord import encode_tfrecord

SAMPLE_FORMAT = 1
"""Raised when the same parameters give other files; samples of another format are out of date."""
SAMPLE_FILE = "sample.json"
"""Beside dataset_info.json: the parameters. A directory without it is never replaced."""

_USED_OF_SPEC = {"cameras", "instruction", "action", "state", "control_frequency", "splits"}

Progress = Callable[[int, int, float], None]
"""Called with datasets done, datasets, and the share of the work done from 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class SplitReport:
    """What one split holds; ``bytes`` are those of its records."""

    episodes: int
    steps: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class SampleReport:
    """What was made, or found as it should be, for one dataset."""

    dataset: str
    directory: str
    status: Literal["written", "up to date"]
    splits: dict[str, SplitReport]


@dataclass(frozen=True, kw_only=True)
class _Shard:
    """One TFRecord file to write: the numbers and lengths of its episodes."""

    source: SampleSource
    path: Path
    split: str
    episodes: tuple[tuple[int, int], ...]
    seed: int

    @property
    def cost(self) -> int:
        """What it takes to make, in bytes of pixels; a scene costs as much as about three large frames."""
        return sum(self.source.cost * steps + 3_000_000 for _, steps in self.episodes)


@dataclass(frozen=True, kw_only=True)
class _Job:
    """One dataset to write: its place, the temporary one beside it, and the shards."""

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
    progress: Progress | None = None,
) -> list[SampleReport]:
    """Write a TFDS directory ``output/<tfds_name>/<version>`` for each dataset.

    The files depend on the arguments and the dataset alone, byte for byte: not on ``jobs``, on the other datasets, or
    on what was there before. A dataset appears under its name when it is complete.

    Args:
        output: made if it is not there.
        datasets: of the registry; their features must be in ``configs/features``.
        episodes: of the train split; other published splits get half as many, at least one.
        steps: of every episode.
        seed: from 0; other seeds give other scenes, texts and numbers.
        shards: files of a split, if it has as many episodes.
        jobs: processes; default one per CPU. With 1 everything is done in this process; with more, a script needs a
            main guard, as ``multiprocessing`` asks for.
        vary_steps: lengths vary from 1 to ``steps``; in splits of at least two episodes the second is empty, in those
            of at least three the third has fewer than five steps.
        overwrite: replace samples with other parameters, instead of raising.
        progress: told after each file.

    Returns:
        One report for each dataset, in the order given.

    Raises:
        UsageError: a number below 1, a dataset twice or without known features, or an output that cannot be written to.
        ConflictError: something else is in the place of a dataset. Nothing was written.
        ConvertError: writing failed; datasets that were complete stay.
    """
    for name, value in (("episodes", episodes), ("steps", steps), ("shards", shards), ("jobs", jobs or 1)):
        if value < 1:
            raise UsageError(f"{name} is {value}; expected at least 1")
    if seed < 0:
        raise UsageError(f"seed is {seed}; expected at least 0")
    root = Path(output)
    parameters = {"episodes": episodes, "steps": steps, "seed": seed, "shards": shards, "vary_steps": vary_steps}
    reports: dict[str, SampleReport] = {}
    wanted: list[_Job] = []
    for spec in datasets:
        if spec.name in reports or any(job.directory == _directory(root, spec) for job in wanted):
            raise UsageError(f"{_directory(root, spec)}: two of the datasets would be written there; name only one")
        job = _plan(spec, _directory(root, spec), parameters)
        report = _existing(job, overwrite=overwrite)
        if report is None:
            wanted.append(job)
        else:
            reports[spec.name] = report
    jobs = min(jobs or len(os.sched_getaffinity(0)), sum(len(job.shards) for job in wanted))
    try:
        for job in wanted:
            _prepare_directory(job)
        with contextlib.closing(_write(wanted, jobs=jobs, done=len(reports), progress=progress)) as whole:
            for job, sizes in whole:
                reports[job.spec.name] = _finish(job, sizes)
    finally:
        for job in wanted:
            shutil.rmtree(job.partial, ignore_errors=True)
            with contextlib.suppress(OSError):
                job.partial.parent.rmdir()
    return [reports[spec.name] for spec in datasets]


def _directory(root: Path, spec: DatasetSpec) -> Path:
    return root / spec.tfds_name / spec.version


def _plan(spec: DatasetSpec, directory: Path, parameters: dict[str, Any]) -> _Job:
    source = prepare_source(spec)
    partial = directory.parent / f".{directory.name}.{os.getpid()}.partial"
    known = spec.model_dump_json(include=_USED_OF_SPEC)
    content = [read_features_json(spec.tfds_name), known, json.dumps(read_hints(spec.tfds_name))]
    parameters = {
        "format": SAMPLE_FORMAT,
        **parameters,
        "content": hashlib.sha256("\0".join(content).encode()).hexdigest(),
    }
    shards = []
    for split in spec.splits or ("train",):
        count = parameters["episodes"] if split == "train" else max(1, parameters["episodes"] // 2)
        lengths = _lengths(count, spec.tfds_name, split, parameters)
        files = min(parameters["shards"], count)
        for number, members in enumerate(np.array_split(np.arange(count), files)):
            name = f"{spec.tfds_name}-{split}.tfrecord-{number:05d}-of-{files:05d}"
            chosen = tuple((int(episode), lengths[episode]) for episode in members)
            shards.append(
                _Shard(source=source, path=partial / name, split=split, episodes=chosen, seed=parameters["seed"])
            )
    return _Job(spec=spec, directory=directory, partial=partial, parameters=parameters, shards=shards)


def _lengths(count: int, tfds_name: str, split: str, parameters: dict[str, Any]) -> list[int]:
    """The number of steps of each episode of a split."""
    steps = parameters["steps"]
    if not parameters["vary_steps"]:
        return [steps] * count
    names = [zlib.crc32(name.encode()) for name in (tfds_name, split)]
    rng = np.random.default_rng([parameters["seed"], *names])
    lengths = [int(length) for length in rng.integers(1, steps, count, endpoint=True)]
    lengths[1:2] = [0] * len(lengths[1:2])
    lengths[2:3] = [min(4, lengths[2])] if count > 2 else []
    return lengths


def _existing(job: _Job, *, overwrite: bool) -> SampleReport | None:
    """The report of a sample that is there already and as wanted; None if it has to be made."""
    if not job.directory.exists():
        return None
    try:
        found = json.loads((job.directory / SAMPLE_FILE).read_text(encoding="utf-8"))
        splits = {name: SplitReport(**split) for name, split in found.pop("splits").items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise ConflictError(
            f"{job.directory} exists and is not a sample (no usable {SAMPLE_FILE}), so it is left alone; "
            "choose another output, or remove it"
        ) from None
    if found == job.parameters:
        return SampleReport(dataset=job.spec.name, directory=str(job.directory), status="up to date", splits=splits)
    if overwrite:
        return None
    differing = {**job.parameters, **found}
    details = ", ".join(
        f"{key} {found.get(key)} (asked for: {job.parameters.get(key)})" if key != "content" else "other content"
        for key in differing
        if found.get(key) != job.parameters.get(key)
    )
    raise ConflictError(f"{job.directory} is a sample with {details}; --overwrite replaces it")


def _prepare_directory(job: _Job) -> None:
    try:
        for left in job.directory.parent.glob(f".{job.directory.name}.*.partial"):
            if not _is_running(left.name.split(".")[-2]):
                shutil.rmtree(left, ignore_errors=True)
        job.partial.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"{error.filename or job.partial}: cannot be written to: {error.strerror}") from None


def _is_running(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def _write(
    wanted: list[_Job], *, jobs: int, done: int, progress: Progress | None
) -> Generator[tuple[_Job, list[int]], None, None]:
    """Write all shards, the dearest first; yields each whole dataset, with the record bytes of its shards."""
    work = sorted(((job, shard) for job in wanted for shard in job.shards), key=lambda item: -item[1].cost)
    total, finished = sum(shard.cost for _, shard in work) or 1, 0
    sizes: dict[Path, int] = {}
    datasets = done + len(wanted)
    for job, shard, size in _results(work, jobs):
        sizes[shard.path] = size
        finished += shard.cost
        if all(other.path in sizes for other in job.shards):
            done += 1
            yield job, [sizes[other.path] for other in job.shards]
        if progress is not None:
            progress(done, datasets, finished / total)


def _results(work: list[tuple[_Job, _Shard]], jobs: int) -> Iterator[tuple[_Job, _Shard, int]]:
    if jobs <= 1:
        for job, shard in work:
            yield job, shard, _write_shard(shard)
        return
    # Fork copies the locks of whatever threads the caller has; spawn does not.
    executor = ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_leave_with_parent
    )
    try:
        futures: dict[Future[int], tuple[_Job, _Shard]] = {
            executor.submit(_write_shard, shard): (job, shard) for job, shard in work
        }
        for future in as_completed(futures):
            job, shard = futures[future]
            try:
                yield job, shard, future.result()
            except BrokenProcessPool:
                raise ConvertError(
                    f"a worker process died while {shard.path.name} was to be written, perhaps for lack of memory; "
                    "try again with fewer --jobs"
                ) from None
    finally:
        executor.shutdown(cancel_futures=True)


def _leave_with_parent() -> None:
    """Let a worker end at once on Ctrl-C, and when its parent was killed, which the pool by itself would not notice."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _write_shard(shard: _Shard) -> int:
    """Write one file; returns the bytes of its records, without their framing."""
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


def _finish(job: _Job, sizes: list[int]) -> SampleReport:
    """Add the metadata and move the dataset into its place."""
    import tensorflow_datasets as tfds

    splits: dict[str, SplitReport] = {}
    infos = []
    for name in dict.fromkeys(shard.split for shard in job.shards):
        members = [(shard, size) for shard, size in zip(job.shards, sizes, strict=True) if shard.split == name]
        lengths = [len(shard.episodes) for shard, _ in members]
        steps = sum(steps for shard, _ in members for _, steps in shard.episodes)
        splits[name] = SplitReport(episodes=sum(lengths), steps=steps, bytes=sum(size for _, size in members))
        infos.append(
            tfds.core.SplitInfo(
                name=name,
                shard_lengths=lengths,
                num_bytes=splits[name].bytes,
                filename_template=tfds.core.ShardedFileTemplate(
                    data_dir=job.partial, dataset_name=job.spec.tfds_name, split=name, filetype_suffix="tfrecord"
                ),
            )
        )
    try:
        tfds.folder_dataset.write_metadata(
            data_dir=job.partial,
            features=read_feature_tree(job.spec.tfds_name),
            split_infos=infos,
            version=job.spec.version,
            check_data=False,
            description=f"Generated sample with the features of {job.spec.tfds_name}.",
        )
        content = {**job.parameters, "splits": {name: dataclasses.asdict(split) for name, split in splits.items()}}
        (job.partial / SAMPLE_FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        if job.directory.exists():
            shutil.rmtree(job.directory)
        job.partial.rename(job.directory)
    except OSError as error:
        raise ConvertError(f"{job.directory}: could not be written: {error.strerror or error}") from None
    return SampleReport(dataset=job.spec.name, directory=str(job.directory), status="written", splits=splits)
