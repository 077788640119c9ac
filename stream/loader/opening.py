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
from stream.batch.cameras import Cameras
from stream.batch.resize import ImageFilter, ImageFit, ImageSize
from stream.batch.spaces import ActionSpace, StateSpace, UnknownUnits, Unmapped
from stream.batch.spec import Decode, Metadata
from stream.batch.vectors import Reduction
from stream.loader.loader import Loader
from stream.loader.open_mixture import open_mixture
from stream.loader.run_config import RunConfig
from stream.loader.sample_spec import SampleSpec
from stream.loader.saved import read_saved
from stream.order.filters import Missing
from stream.order.window import Bounds
from stream.statistics.normalize import Normalize
from stream.storage.remote import cached_root

_log = logging.getLogger("stream")


@with_known_names
def make_loader(
    root: str | Path,
    mixture: str | Path | Mapping[str, Any] | Sequence[str] | Sequence[tuple[int | None, Mapping[str, Any]]],
    *,
    batch_size: int,
    split: str = "train",
    seed: int = 0,
    num_workers: int | Literal["auto"] = 0,
    threads: int | None = None,
    prefetch: int = 2,
    rank: int | None = None,
    world_size: int | None = None,
    cameras: Cameras = None,
    image_size: ImageSize = None,
    image_fit: ImageFit = "stretch",
    image_filter: ImageFilter = "area",
    frames: Sequence[int | str] | None = None,
    bounds: Bounds = "inside",
    metadata: Metadata = "full",
    action: Reduction = "window",
    action_from: int | str = 0,
    horizon: int | str | None = None,
    state_from: int | str = 0,
    state_horizon: int | str = 1,
    action_columns: Mapping[str, Sequence[Any]] | None = None,
    state_columns: Mapping[str, Sequence[Any]] | None = None,
    action_space: ActionSpace | None = None,
    state_space: StateSpace | None = None,
    unmapped: Unmapped = "error",
    unknown_units: UnknownUnits = "refuse",
    language: str | Sequence[str] = "language",
    columns: Sequence[str] = (),
    samples_per_episode: int = 0,
    passes: int | None = None,
    min_actions: int = 1,
    shuffle: str = "global",
    filters: Any = None,
    missing: Missing = "error",
    episodes: Mapping[str, Any] | str | Path | None = None,
    keep_ranges: Mapping[str, Any] | str | Path | None = None,
    sample_weights: str | Mapping[str, str] | None = None,
    transforms: Sequence[Any] = (),
    normalize: str | Mapping[str, Any] | Normalize | None = None,
    on_error: Literal["raise", "replace"] = "raise",
    num_steps: int | None = None,
    decode: Decode = "host",
    cache: str | Path | None = None,
) -> Loader:
    """Open a converted root and mix its datasets.

    Args:
        root: Folder that ``convert.run`` wrote or ``pairstream fetch`` copied; or ``s3://...``, ``gs://...`` or
            ``https://...``, which is read in place.
        mixture: Name of a mixture (``oxe29``) or dataset, a list of datasets, a mapping of names to weights, or a YAML
            file. A weight is a number, ``"size"``, or ``{"size_power": p, "factor": f}``; 0 leaves the dataset out. A
            member may also be a mapping with ``dataset``, ``root``, ``weight``, ``split``, ``filters``, ``episodes``
            and ``keep_ranges``. A schedule is a list of ``(until, mapping)``: each mapping holds up to step ``until``,
            which is None for the last.
        batch_size: Rows of the global batch, at most 2^20. Each rank gets ``batch_size / world_size``.
        split: Role that the mixture defines (``train``, ``val``), if it has a name or file; else episodes in TFDS's
            grammar (``train[:90%]``, ``train+test``).
        seed: Seed of the order of samples and of random transforms.
        num_workers: Processes, each of which makes complete batches; 0 makes them in a thread of this process.
            ``auto`` takes this rank's share of the processors available to the ranks of this machine, less one for the
            trainer: at least 1, at most 64. ``Loader.num_workers`` has the number.
        threads: Threads of each worker, by default 1. Without workers the default is 2, or 1 on one processor.
        prefetch: Batches that are ready or in progress, in addition to one for each worker.
        rank: Number of this loader among the ranks, from 0. Give it with ``world_size``, or give neither: a loader
            without ranks raises in a multi-process job. ``rank=0, world_size=1`` always gives all rows.
        world_size: Number of ranks that share the global batch.
        cameras: Role or name of a camera (``"wrist"``), whose key is ``frames``; or a list, with a key for each
            (``frames/primary``, ``frames/wrist``). By default the primary camera, or else the first. A depth camera has
            its name or ``depth/<role>``; its key is ``depth``, or ``depth/wrist`` in a list. A mapping
            ``{"exterior": ("left", "right"), "wrist": "wrist"}`` gives the keys. One of several cameras is drawn for
            each sample, again in each epoch.
        image_size: (height, width) of all frames, resized where they are decoded; or a mapping by camera. By default
            the stored size, which must then be the same in all datasets.
        image_fit: ``stretch`` to the size, or ``pad`` with black borders, which keeps the aspect ratio.
        image_filter: ``area``, the mean of the covered pixels; ``lanczos`` or ``bilinear``, with antialiasing. Depth
            takes the nearest value.
        frames: Frames of a sample, relative to its step t: steps (``-1``), seconds by each dataset's rate
            (``"0.6s"``), a random distance (``"1..10"``), or the dataset's ``"offset"``. ``"last"`` is the last step of
            the episode. ``"goal"`` is a random later step of the episode, each with the same probability.
            ``"goal:geometric:0.99"`` is k steps later with a probability that falls by this factor a step, or the last
            step. By default the frames of a pair.
        bounds: ``inside`` takes the steps t whose frames all exist. ``clamp`` takes every t, and repeats the first or
            last frame of the episode, with mask False.
        metadata: ``full``; ``dataset_only`` for frames, sample and dataset; ``none`` for frames and sample.
        action: ``window`` of all steps of the pair, or one action: ``sum``, ``mean`` or ``first``.
        action_from: First step of the action windows, relative to t; a number, or seconds by each dataset's rate
            (``"-0.2s"``).
        horizon: Steps of the action windows, at most 100,000, or seconds (``"1s"``). Steps beyond the episode, and
            beyond a dataset's horizon if others have a longer one, are masked. By default each dataset's offset.
        state_from: First step of the state, relative to t, or seconds.
        state_horizon: Steps of the state, or seconds; with 1 the state has no dimension of steps.
        action_columns: Columns of ``steps`` that replace the registry's action, by dataset: names, or
            ``(name, [indices])``.
        state_columns: The same for the state.
        action_space: Space that the action of every dataset is mapped to: ``oxe``, the 7 numbers of OpenVLA and Octo;
            ``eef_delta``, the same in metres and radians a step; or ``joint``. None takes the registry's action.
            Members of ``action_columns`` keep those.
        state_space: The same for the state: ``eef``, the pose of the end effector, or ``joint``.
        unmapped: Treatment of datasets that do not map to a space: ``error``; ``mask``, zeros with mask False;
            ``drop``, a mixture without them.
        unknown_units: ``refuse`` datasets whose units no source specifies, or ``keep`` their numbers as stored.
        language: Column of texts that is the key ``language``; or several columns. One of the texts that are not empty
            is drawn for each sample, again in each epoch.
        columns: Additional columns of the index, labels included, with ``metadata="full"``. Each is a key of the batch:
            a list of texts, or an array with its mask ``<name>_mask``.
        samples_per_episode: Pairs of each episode in an epoch; 0 for all.
        passes: Complete passes after which iteration stops: each pass has each sample of each member once, whatever
            the member's weight above 0. With ``sample_weights`` a pass draws the same number of samples by weight.
            Batches have ``sample_mask``. The last batch is smaller; with several ranks it is padded to the same number
            of rows for each rank, and ``sample_mask`` is False for the padding. None draws by weight without end.
        min_actions: Actions that the episode must have from t on; steps t with fewer are left out. Steps whose action
            does not exist in ``action_space`` are always left out.
        shuffle: ``global``; ``block:N``, which draws N neighbouring records together; or ``none``.
        filters: ``[(column, operator, value), ...]``, all of which must hold, or a mapping of datasets to such lists.
        missing: Treatment of datasets that lack a column of ``filters``: ``error``; ``keep`` all of their samples;
            ``drop``, a mixture without them.
        episodes: Episodes to keep by member: a list of their ``episode_id``, ``{"leave_out": ids}``, or a file with
            either; or a JSON file of the mapping.
        keep_ranges: Steps t to keep by member: a mapping of episodes to lists of [start, stop), or a JSON file such as
            openpi's for DROID. Episodes that are not named are left out.
        sample_weights: Column of numbers >= 0, of every member or by member. Of N samples in an epoch, sample i is
            drawn floor or ceil of N * w_i / sum(w) times, and never with weight 0.
        transforms: ``grain.transforms.Map`` or ``RandomMap``, applied to each batch where it is made.
        normalize: Normalisation after the transforms: a method of ``stream.Normalize`` (``"mean_std"``, ``"q01_q99"``,
            ``"min_max"``), a mapping of its arguments, or an instance, such as ``stream.load_normalize(path)``.
        on_error: ``raise``, or ``replace`` an unreadable record by another of the same dataset.
        num_steps: Step at which iteration stops; None never stops. Each ``for`` starts at step 0, so it gives the same
            batches each time. ``stream.torch.PairDataset`` continues where the last iteration ended.
        decode: ``host`` decodes JPEGs where the batch is made; ``device`` leaves frames encoded
            (``stream.batch.encoded``) until ``stream.torch.to_device`` decodes them.
        cache: Local folder for the parts of a remote root that were read, and a limit for its records:
            ``"DIR:200GB"``, or ``"DIR"`` without a limit. Loaders and ranks of a machine share it, and
            ``pairstream fetch`` fills it.

    Returns:
        The loader. It starts no workers yet.

    Raises:
        ArgumentError: An argument is wrong; the message has its value and the available ones.
        stream.base.errors.FormatError: A manifest or an index is damaged.
        stream.storage.remote.RemoteError: A remote root cannot be read.
    """
    _check_platform()
    arguments = locals()
    spec = SampleSpec(**{name: arguments[name] for name in SampleSpec.__dataclass_fields__})
    run_config = RunConfig(**{name: arguments[name] for name in RunConfig.__dataclass_fields__})
    opened = open_mixture(cached_root(root, cache), mixture, split=split, spec=spec, batch_size=run_config.batch_size)
    return Loader(opened, run_config, normalize=normalize, knows_ranks=rank is not None)


def load_loader(
    path: str | Path, *, root: str | Path | None = None, cache: str | Path | None = None, **overrides: Any
) -> Loader:
    """Make the loader that a ``loader.json`` describes.

    The file holds the normalisation, but only the names of other transforms, so give these again. A warning names the
    missing ones.

    Args:
        path: File that ``Loader.save`` wrote.
        root: Location of the converted data, if they were moved.
        cache: Cache of a remote root, as for ``make_loader``.
        overrides: ``rank``, ``world_size``, ``num_workers``, ``threads``, ``prefetch``, ``transforms``, ``on_error``,
            ``num_steps`` or ``decode``, as for ``make_loader``; or ``normalize=False``, for values as stored. Other
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
        if argument in SampleSpec.__dataclass_fields__ or argument in ("batch_size", "normalize"):
            raise ArgumentError(f"{argument}: {path} defines it, as another would be another run; use make_loader")
    check_names(overrides, RunConfig.__dataclass_fields__)
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
    if sys.platform != "linux":
        raise OSError(
            f"batches are made in Linux's shared memory (memfd_create), and this is {sys.platform}; use Linux"
        )
