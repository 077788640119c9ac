"""Opening of loaders: from arguments, or from the ``loader.json`` of a run."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from stream.base.arguments import check_names, with_known_names
from stream.base.errors import ArgumentError
from stream.loader.loader import Loader
from stream.loader.open_mixture import open_mixture
from stream.loader.run_config import RunConfig, Workers
from stream.loader.sample_spec import FramesLike, SampleSpec, VectorLike
from stream.loader.saved import read_saved
from stream.order.mixture import MixtureLike
from stream.sample.frames import Frames
from stream.sample.select import Select
from stream.sample.vector import Vector
from stream.statistics.normalize import Normalize
from stream.storage.cache_folder import CacheLike, cached_root

_log = logging.getLogger("stream")
_OVERRIDES = ("rank", "world_size", "num_workers", "transforms", "on_error", "num_steps", "decode")
"""Arguments of ``load_loader`` that define no other samples."""


@with_known_names
def make_loader(
    root: str | Path,
    mixture: MixtureLike,
    *,
    batch_size: int,
    split: str = "train",
    seed: int = 0,
    num_workers: int | Literal["auto"] | Workers = 0,
    rank: int | None = None,
    world_size: int | None = None,
    frames: FramesLike = Frames(),
    action: VectorLike = Vector(),
    state: VectorLike = Vector(),
    language: str | Sequence[str] | None = "language",
    columns: Sequence[str] = (),
    select: Select | Mapping[str, Any] = Select(),
    shuffle: str = "global",
    num_epochs: int | None = None,
    sample_weights: str | Mapping[str, str] | None = None,
    samples_per_episode: int = 0,
    num_steps: int | None = None,
    transforms: Sequence[Any] = (),
    normalize: str | Mapping[str, Any] | Normalize | None = None,
    on_error: Literal["raise", "replace"] = "raise",
    cache: CacheLike = None,
) -> Loader:
    """Open a converted root and mix its datasets.

    >>> loader = make_loader("data/oxe", "oxe29", batch_size=64, frames=[-1, 0], action=16)  # doctest: +SKIP

    Args:
        root: Folder that ``convert.run`` wrote or ``pairstream fetch`` copied; or ``s3://...``, ``gs://...``,
            ``https://...`` or ``hf://datasets/ORG/NAME@REVISION``, which is read in place.
        mixture: Name of a mixture (``oxe29``) or dataset, a list of datasets, a mapping of names to weights, or a YAML
            file. A weight is a number, ``"size"``, or ``{"size_power": p, "factor": f}``; 0 leaves the dataset out. A
            member may also be a mapping with ``dataset``, ``root``, ``weight``, ``split``, ``select``, ``frames``,
            ``action`` and ``state``. A schedule is a list of ``(until, mapping)``: each mapping holds up to step
            ``until``, which is None for the last.
        batch_size: Rows of the global batch, at most 2^20. Each rank gets ``batch_size / world_size``.
        split: Role that the mixture defines (``train``, ``val``), if it has a name or file; else episodes in TFDS's
            grammar (``train[:90%]``, ``train+test``).
        seed: Seed of the order of samples and of random transforms.
        num_workers: Processes, each of which makes complete batches; 0 makes them in a thread of this process.
            ``auto`` takes this rank's share of the processors, less one for the trainer. ``stream.Workers`` also sets
            threads and prefetched batches.
        rank: Number of this loader among the ranks, from 0. Give it with ``world_size``, or give neither: a loader
            without ranks raises in a multi-process job. ``rank=0, world_size=1`` always gives all rows.
        world_size: Number of ranks that share the global batch.
        frames: ``stream.Frames``, or only its steps (``[-1, 0, "goal"]``). By default the frames of a pair; None for
            batches without frames, which read only the index.
        action: ``stream.Vector``, or only its steps (``16``, ``"1s"``); None for batches without actions. By default as
            many steps as the dataset's offset.
        state: ``stream.Vector``, or only its steps; None for batches without states. By default the state at t.
        language: Column of texts that is the key ``language``; or several columns. One of the texts that are not empty
            is drawn for each sample, again in each epoch. None for batches without it.
        columns: Additional columns of the index, labels included. Each is a key of the batch: a list of texts, or an
            array with its mask ``<name>_mask``.
        select: ``stream.Select``: the steps t that are samples. By default all whose frames exist.
        shuffle: ``global``; ``block:N``, which draws N neighbouring records together; or ``none``.
        num_epochs: Complete epochs after which iteration stops: each has each sample of each member once, whatever the
            member's weight above 0. With ``sample_weights`` an epoch draws the same number of samples by weight.
            Batches have ``sample_mask``. The last batch is smaller; with several ranks it is padded to the same number
            of rows for each rank, and ``sample_mask`` is False for the padding. None draws by weight without end.
        sample_weights: Column of numbers >= 0, of every member or by member. Of N samples in an epoch, sample i is
            drawn floor or ceil of N * w_i / sum(w) times, and never with weight 0.
        samples_per_episode: Samples of each episode in an epoch; 0 for all.
        num_steps: Step at which iteration stops; None never stops. Each ``for`` starts at step 0, so it gives the same
            batches each time. ``stream.torch.StreamDataset`` continues where the last iteration ended.
        transforms: ``grain.transforms.Map`` or ``RandomMap``, applied to each batch where it is made.
        normalize: Normalisation after the transforms: a method of ``stream.Normalize`` (``"mean_std"``, ``"q01_q99"``,
            ``"min_max"``), a mapping of its arguments, or an instance, such as ``stream.load_normalize(path)``.
        on_error: ``raise``, or ``replace`` an unreadable record by another of the same dataset.
        cache: Local folder for the parts of a remote root that were read, and a limit for its records:
            ``"DIR:200GB"``, or ``"DIR"`` without a limit. Loaders and ranks of a machine share it, and
            ``pairstream fetch`` fills it. None is the folder of ``PAIRSTREAM_CACHE``, or ``~/.cache/pairstream``, with
            half of the free space; False is a temporary folder that is removed when this process ends.

    Returns:
        The loader. It starts no workers yet.

    Raises:
        ArgumentError: An argument is wrong; the message has its value and the available ones.
        stream.base.errors.FormatError: A manifest or an index is damaged.
        stream.storage.remote.RemoteError: A remote root cannot be read.
    """
    _check_platform()
    spec = SampleSpec(
        seed=seed,
        shuffle=shuffle,
        num_epochs=num_epochs,
        sample_weights=sample_weights,
        samples_per_episode=samples_per_episode,
        frames=None if frames is None else Frames.of("frames", frames),
        action=None if action is None else Vector.of("action", action),
        state=None if state is None else Vector.of("state", state),
        language=language,
        columns=columns,
        select=Select.of("select", select),
    )
    run_config = RunConfig(
        batch_size=batch_size,
        workers=Workers.of("num_workers", num_workers),
        rank=rank,
        world_size=world_size,
        transforms=transforms,
        on_error=on_error,
        num_steps=num_steps,
        decode="host" if spec.frames is None else spec.frames.decode,
    )
    opened = open_mixture(cached_root(root, cache), mixture, split=split, spec=spec, batch_size=run_config.batch_size)
    return Loader(opened, run_config, normalize=normalize, knows_ranks=rank is not None)


def load_loader(
    path: str | Path, *, root: str | Path | None = None, cache: CacheLike = None, **overrides: Any
) -> Loader:
    """Make the loader that a ``loader.json`` describes.

    The file holds the normalisation, but only the names of other transforms, so give these again. A warning names the
    missing ones.

    Args:
        path: File that ``Loader.save`` wrote.
        root: Location of the converted data, if they were moved.
        cache: Cache of a remote root, as for ``make_loader``.
        overrides: ``rank``, ``world_size``, ``num_workers``, ``transforms``, ``on_error`` or ``num_steps``, as for
            ``make_loader``; ``decode``, as for ``stream.Frames``; or ``normalize=False``, for values as stored. Other
            arguments would define another run.

    Raises:
        StateError: The file is not a loader.json, or the data differ from those of the run; the message names the
            difference.
        ArgumentError: An override is wrong.
    """
    _check_platform()
    keeps_stored_values = overrides.get("normalize") is False
    if keeps_stored_values:
        del overrides["normalize"]
    for argument in overrides:
        if argument in ("batch_size", "normalize", *SampleSpec.names()):
            raise ArgumentError(f"{argument}: {path} defines it, as another would be another run; use make_loader")
    check_names(overrides, _OVERRIDES)
    if "num_workers" in overrides:
        overrides["workers"] = Workers.of("num_workers", overrides.pop("num_workers"))
    mixture, run_config, saved_transforms = read_saved(path, root=root, cache=cache, overrides=overrides)
    if saved_transforms.code and "transforms" not in overrides:
        _log.warning(
            "%s: loaded without the transforms of the run, which are code: %s; give transforms=, [] for none",
            path,
            ", ".join(saved_transforms.code),
        )
    if keeps_stored_values:
        transforms = [item for item in run_config.transforms if not isinstance(item, Normalize)]
        run_config = replace(run_config, transforms=transforms)
    return Loader(mixture, run_config, knows_ranks=bool({"rank", "world_size"} & set(overrides)))


def _check_platform() -> None:
    if sys.platform == "darwin":
        _log.warning("macOS is for looking and small runs: it was tried on Linux only, without what macOS lacks")
    elif sys.platform != "linux":
        raise OSError(f"batches are made in shared memory of Linux or macOS, and this is {sys.platform}; use Linux")
