"""The loader: a Grain dataset of mixed batches with random access by step."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, Literal, NoReturn, overload

from stream.base.arguments import check_names, with_known_names
from stream.base.errors import ArgumentError
from stream.base.html import html_table
from stream.batch.cameras import Cameras
from stream.batch.resize import ImageFilter, ImageFit, ImageSize
from stream.batch.spaces import ActionSpace, StateSpace, UnknownUnits, Unmapped
from stream.batch.spec import Batch, Decode, Metadata
from stream.batch.vectors import Reduction
from stream.loader.episode import Episode, read_episode
from stream.loader.iterator import LoaderIterator
from stream.loader.open_mixture import OpenMixture, open_mixture
from stream.loader.quiet_grain import grain
from stream.loader.rank_plan import RankPlan
from stream.loader.run_config import RunConfig
from stream.loader.run_log import RunLog
from stream.loader.sample_spec import SampleSpec
from stream.loader.saved import read_saved, save_loader
from stream.loader.state import describe_content, make_state, read_state
from stream.order.filters import Missing
from stream.order.reference import SampleRef
from stream.order.window import Bounds
from stream.statistics.normalize import Normalize, bind_transforms, describe_transforms
from stream.storage.remote import cached_root

_log = logging.getLogger("stream")
_WAYS = (
    "iter(loader) gives its batches in turn, loader.batch_at(step) one of them, and a DataLoader of torch takes "
    "stream.torch.PairDataset with batch_size=None"
)


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
        root: Folder that ``convert.run`` wrote, or ``pairstream.fetch`` copied; or ``s3://...``, ``gs://...`` or
            ``https://...``, to be read in place.
        mixture: Name of a mixture (``oxe29``) or dataset, a list of datasets, a mapping of names to weights, or a YAML
            file. A weight is a number, ``"size"``, or ``{"size_power": p, "factor": f}``; 0 leaves the dataset out. A
            member may also be a mapping with ``dataset``, ``root``, ``weight``, ``split``, ``filters``, ``episodes``
            and ``keep_ranges``. A schedule is a list of ``(until, mapping)``: the mapping holds up to this step, the
            last one's is None.
        batch_size: Rows of the global batch, at most 2^20. Each rank gets ``batch_size / world_size``.
        split: Role that the mixture defines (``train``, ``val``), if it has a name or file; else episodes in TFDS's
            grammar (``train[:90%]``, ``train+test``).
        seed: Seed of the order of samples and of random transforms.
        num_workers: Processes, each of which makes whole batches; 0 makes them in a thread of this process. ``auto``
            takes this rank's share of the processors that affinity and control groups leave to the ranks of this
            machine, without one for the trainer: at least 1, at most 64. ``Loader.num_workers`` tells it.
        threads: Threads of each worker, by default 1. Without workers the default is 2, or 1 on one processor.
        prefetch: Batches that are ready or in progress beyond one for each worker.
        rank: Number of this loader among the ranks, from 0. Give it with ``world_size``, or neither: a process that is
            one of several then refuses to iterate. ``rank=0, world_size=1`` gives all rows in any case.
        world_size: Number of ranks that share the global batch.
        cameras: Role or name of a camera (``"wrist"``), whose key is ``frames``; or a list, with a key for each
            (``frames/primary``, ``frames/wrist``); by default the primary camera, or else the first. A depth camera has
            its name or ``depth/<role>``; its key is ``depth``, or in a list such as ``depth/wrist``. A mapping
            ``{"exterior": ("left", "right"), "wrist": "wrist"}`` gives the keys, and draws one of several cameras for
            each sample, anew in each epoch.
        image_size: (height, width) of all frames, resized where they are decoded, so that datasets of several sizes
            make one batch; or a mapping by camera. By default the stored size, which must then be one.
        image_fit: ``stretch`` to the size, or ``pad`` with black borders, which keeps the aspect ratio.
        image_filter: ``area``, the mean of the covered pixels; ``lanczos`` or ``bilinear``, with antialiasing. Depth
            takes the nearest value.
        frames: Frames of a sample, relative to its step t: steps (``-1``), seconds by each dataset's rate (``"0.6s"``),
            a random distance (``"1..10"``), ``"offset"`` (the dataset's own), ``"goal"`` (a random later step of the
            episode, all alike), ``"goal:geometric:0.99"`` (k steps later with a probability that falls by this factor
            a step, or the last step) or ``"last"`` (its last step). By default the frames of a pair.
        bounds: ``inside`` takes the steps t whose frames all exist; ``clamp`` every t, and repeats the first or last
            frame of the episode, with mask False.
        metadata: ``full``; ``dataset_only`` for frames, sample and dataset; ``none`` for frames and sample.
        action: ``window`` of all steps of the pair, or one action: ``sum``, ``mean`` or ``first``.
        action_from: First step of the action windows, relative to t; a number, or seconds by each dataset's rate
            (``"-0.2s"``).
        horizon: Steps of the action windows, at most 100,000, or seconds (``"1s"``); steps beyond the episode are
            masked, and beyond a dataset's own where others have more. By default each dataset's offset.
        state_from: First step of the state, relative to t, or seconds.
        state_horizon: Steps of the state, or seconds; with 1 the state has no dimension of steps.
        action_columns: Columns of ``steps`` that replace the registry's action, by dataset: names, or
            ``(name, [indices])``.
        state_columns: The same for the state.
        action_space: Space that the action of every dataset is mapped to: ``oxe``, the 7 numbers of OpenVLA and Octo;
            ``eef_delta``, the same in metres and radians a step; or ``joint``. None takes the registry's action.
            Members of ``action_columns`` keep those.
        state_space: The same for the state: ``eef``, the pose of the end effector, or ``joint``.
        unmapped: What to do with datasets that do not map to a space: ``error``; ``mask``, zeros with mask False;
            ``drop``, a mixture without them.
        unknown_units: ``refuse`` datasets whose units no source tells, or ``keep`` their numbers as stored.
        language: Column of texts that is the key ``language``; or several, one of which is drawn for each sample of
            those that are not empty, anew in each epoch.
        columns: Additional columns of the index, labels included, with ``metadata="full"``. Each is a key of the batch:
            a list of texts, or an array with its mask ``<name>_mask``.
        samples_per_episode: Pairs of each episode in an epoch; 0 for all.
        passes: Complete passes after which iteration stops: each pass has each sample of each member once, whatever
            the member's weight above 0; with ``sample_weights`` a pass draws as many by them. Batches have
            ``sample_mask``. The last one is smaller; with several ranks it is padded, so that all ranks get as many
            rows, and ``sample_mask`` is False for the padding. None draws by weight without end.
        min_actions: Actions that the episode must have from t on; steps t with fewer are left out. Steps whose action
            does not exist in ``action_space`` are left out in any case.
        shuffle: ``global``; ``block:N``, which draws N neighbouring records together; or ``none``.
        filters: ``[(column, operator, value), ...]``, all of which must hold, or such lists by dataset.
        missing: What to do with datasets that lack a column of ``filters``: ``error``; ``keep`` all of their samples;
            ``drop``, a mixture without them.
        episodes: Episodes to keep by member: a list of their ``episode_id``, ``{"leave_out": ids}``, or a file of
            these; or a JSON file of the mapping.
        keep_ranges: Steps t to keep by member: a mapping of episodes to lists of [start, stop), or a JSON file of one,
            as openpi publishes it for DROID. Episodes that are not named are left out.
        sample_weights: Column of numbers >= 0, of every member or by member: of N samples in an epoch, sample i is
            drawn floor or ceil of N * w_i / sum(w) times, and never with weight 0.
        transforms: ``grain.transforms.Map`` or ``RandomMap``, applied to each batch where it is made.
        normalize: Normalisation after the transforms: a method of ``stream.Normalize`` (``"mean_std"``, ``"q01_q99"``,
            ``"min_max"``), a mapping of its arguments, or one itself, such as ``stream.load_normalize(path)``.
        on_error: ``raise``, or ``replace`` an unreadable record by another of the same dataset.
        num_steps: Step at which iteration stops; None never stops. Each ``for`` begins at step 0, so it gives the same
            batches as the one before. ``stream.torch.PairDataset`` goes on where the last one ended.
        decode: ``host`` decodes JPEGs where the batch is made; ``device`` leaves frames encoded
            (``stream.batch.encoded``) until ``stream.torch.to_device`` decodes them.
        cache: Local folder of what was read of a remote root, and a bound for its records: ``"DIR:200GB"``, or
            ``"DIR"`` for none. Loaders and ranks of a machine share it, and ``pairstream.fetch`` fills it.

    Returns:
        The loader. It starts no workers yet.

    Raises:
        ArgumentError: An argument is wrong; the message says what was found and what exists.
        stream.base.errors.FormatError: A manifest or an index is damaged.
        stream.storage.remote.RemoteError: A remote root cannot be read.
    """
    _check_platform()
    given = locals()
    options = SampleSpec(**{name: given[name] for name in SampleSpec.__dataclass_fields__})
    running = RunConfig(**{name: given[name] for name in RunConfig.__dataclass_fields__})
    data = open_mixture(cached_root(root, cache), mixture, split=split, options=options, batch_size=running.batch_size)
    return Loader(data, running, normalize=normalize, knows_ranks=rank is not None)


class Loader(grain.IterDataset[Batch]):
    """Batches of a mixture. ``make_loader`` and ``load_loader`` make one.

    Iteration returns batches from step 0 on: dicts of arrays and lists with this rank's b rows.

    - ``frames`` uint8 [b, F, H, W, 3], RGB; F is 2 for pairs (t, t + offset). With ``decode="device"`` the batch has
      ``frames_jpeg`` and ``frames_span`` instead (``stream.batch.encoded``).
      With several cameras each has its own, such as ``frames/wrist``.
    - ``depth`` (``depth/wrist``) uint16 [b, F, H, W], millimetres, 0 where nothing was measured, if you choose a depth
      camera; with ``depth_mask`` (``depth_mask/wrist``) as ``frames_mask``.
    - ``frames_mask`` (``frames_mask/wrist``) bool [b, F], if you choose frames, cameras or ``bounds="clamp"``, or
      datasets differ in F. False for a repeated edge of the episode, a damaged frame, and a camera that the dataset
      lacks.
    - ``frame_step`` int64 [b, F], the steps of the frames, if you choose frames, cameras or ``bounds="clamp"``.
    - ``action`` float32 [b, W, A], or [b, A] if reduced.
    - ``action_mask`` bool, shaped as ``action``. Values beyond the dataset's size or the pair's steps are 0 and False,
      and so are those that a canonical space does not have, such as the rotation of a dataset without one.
    - ``state`` float32 [b, S], or [b, W, S] with ``state_horizon`` above 1.
    - ``state_mask`` bool, shaped as ``state``.
    - ``language`` list of b str.
    - ``dataset`` int32 [b], index in ``dataset_names``.
    - ``episode`` int64 [b], number in the split, in the order of its shards.
    - ``step`` int64 [b], t.
    - ``offset`` int64 [b], steps from t to the last frame of the sample.
    - ``sample`` int64 [b], global number of the sample.
    - ``sample_mask`` bool [b], with ``passes``: False for rows that pad the last batch of several ranks.

    You may write into the arrays. Their memory is reused when the last array, view or tensor over it is gone.

    Attributes:
        batch_size: Rows of the global batch.
        rank: Number of this loader among the ranks.
        world_size: Number of ranks.
        num_workers: Worker processes of each iterator.
        num_steps: Step at which iteration stops, or None.
    """

    def __init__(
        self, data: OpenMixture, running: RunConfig, *, normalize: Any = None, knows_ranks: bool = True
    ) -> None:
        super().__init__()
        self.data = data
        running = replace(running, transforms=bind_transforms(running.transforms, data, normalize))
        self.running = running
        self.knows_ranks = knows_ranks
        self.rank_plan = RankPlan(data, running)
        self.batch_size = running.batch_size
        self.rank, self.world_size = running.ranks
        self.num_workers = running.worker_count
        self.num_steps = self.rank_plan.num_steps
        self.counters = self.rank_plan.counters

    def with_ranks(self, rank: int, world_size: int) -> Loader:
        """Return a loader of the same open data for another rank; its counters begin at 0.

        It logs to the targets of ``log_to`` too.

        Raises:
            ArgumentError: The ranks are wrong, or do not divide ``batch_size``.
        """
        loader = Loader(self.data, replace(self.running, rank=rank, world_size=world_size))
        for log in self.counters.watchers:
            if isinstance(log, RunLog):
                loader.log_to(log.target, every=log.every)
        return loader

    @property
    def dataset_names(self) -> tuple[str, ...]:
        """Names of the datasets, in the order of ``batch["dataset"]``."""
        return self.data.names

    @property
    def weights(self) -> dict[str, float]:
        """Share of each dataset in the samples, a multiple of 2^-20; of a schedule the first phase's."""
        return self.data.weights_at(0)

    def weights_at(self, step: int) -> dict[str, float]:
        """Return the share of each dataset in the samples at a step of a schedule."""
        return self.data.weights_at(step)

    @property
    def sizes(self) -> dict[str, int]:
        """Samples of one epoch of each dataset."""
        return self.data.sizes

    @property
    def action_names(self) -> dict[str, tuple[str, ...]]:
        """Name of each dimension of ``action``, by dataset; further dimensions are padding."""
        return {name: vector.names for name, vector in zip(self.data.names, self.data.spec.actions, strict=True)}

    @property
    def state_names(self) -> dict[str, tuple[str, ...]]:
        """Name of each dimension of ``state``, by dataset."""
        return {name: vector.names for name, vector in zip(self.data.names, self.data.spec.states, strict=True)}

    @property
    def normalize(self) -> Normalize | None:
        """The last normalisation of the transforms, to take a model's output back, to save or to export; or None."""
        return next((each for each in reversed(self.running.transforms) if isinstance(each, Normalize)), None)

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps that draw as many samples as all datasets have together, rounded up."""
        return -(-sum(self.sizes.values()) // self.batch_size)

    def __iter__(self) -> LoaderIterator:
        return LoaderIterator(self)

    # Python's own messages would not say what to do.
    def __next__(self) -> NoReturn:
        raise TypeError(f"a Loader is not an iterator; {_WAYS}")

    def __len__(self) -> int:
        raise TypeError(f"a Loader has no length; {_WAYS}")

    def __getitem__(self, index: Any) -> NoReturn:
        raise TypeError(f"a Loader has no elements by number; {_WAYS}")

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        counts = f"batch_size={self.batch_size}, num_workers={self.num_workers}"
        return f"Loader({len(self.dataset_names)} datasets, {counts})"

    def _repr_html_(self) -> str:
        options, running = self.data.options, self.running
        said = [f"{self.batch_size} rows a batch", f"{self.steps_per_epoch:,} steps an epoch", f"seed {options.seed}"]
        said += [f"{self.num_workers} workers"]
        said += [f"rank {self.rank} of {self.world_size}"] if self.world_size > 1 else []
        said += [type(each).__name__ for each in running.transforms]
        rows = [
            (name, f"{self.weights[name]:.4f}", f"{size:,}", member.entry.split, ", ".join(self.action_names[name]))
            for (name, size), member in zip(self.sizes.items(), self.data.views.members, strict=True)
        ]
        table = html_table(("dataset", "weight", "samples", "split", "action"), rows)
        return f"<p><b>Loader</b> {escape(', '.join(said))}</p>{table}"

    def batch_at(self, step: int) -> Batch:
        """Return the batch of any step, the same as iteration returns, made in this process in new memory.

        Args:
            step: Step, from 0.

        Raises:
            RecordError: A record cannot be read, and ``on_error`` is ``raise``.
        """
        return self.rank_plan.make(step).batch

    def batch_on_host(self, step: int) -> Batch:
        """Return the batch of a step, as with ``decode="host"``."""
        made = self.rank_plan.on_host().make(step)
        self.counters.add_replaced(made.replaced)
        return made.batch

    @overload
    def describe(self, step: int) -> list[SampleRef]: ...

    @overload
    def describe(self) -> dict[str, dict[str, Any]]: ...

    def describe(self, step: int | None = None) -> list[SampleRef] | dict[str, dict[str, Any]]:
        """Return the origin of each row of a step, without reading images; without a step, an overview.

        The overview has by dataset:

        - ``split``, and ``ranges``: the episodes [start, stop) that it names, by TFDS split.
        - ``episodes``: their count. ``remaining_episodes``: how many of them have samples.
        - ``samples``: count of samples in an epoch.
        - ``left_out``: count of the other samples by reason (``window``, ``actions``, ``filters``, ``episodes``,
          ``keep_ranges``, ``holes``). ``left_out_by_condition``: the same for each condition of the filters. A sample
          that several would leave out counts for the first.
        - ``unknown_episodes``: how many of the named episodes its splits lack.
        - ``labels``: columns that were added after the conversion (``stream.add_labels``).
        - ``damaged``: what the conversion left out, by reason.
        - ``weight_0``: of a dataset with ``sample_weights``, the count of samples of weight 0.

        With ``on_error="replace"`` the result has the samples that were drawn; the batch and ``stats()`` have the ones
        that replaced them.

        Args:
            step: Step, from 0, or None.
        """
        return self.data.overview() if step is None else self.data.describe(self.rank_plan.rows_of([step]))

    def episode(self, dataset: str, episode: int, *, split: str | None = None) -> Episode:
        """Return the steps and frames of an episode.

        Args:
            dataset: Name of a dataset of the mixture.
            episode: Number of the episode in its split, as in batches and ``describe``.
            split: Name of the split; needed if the dataset has samples of several.

        Raises:
            ArgumentError: The dataset, split or episode does not exist.
            stream.base.errors.FormatError: A record is damaged.
        """
        return read_episode(self.data, dataset, episode, split=split)

    def stats(self) -> dict[str, Any]:
        """Return statistics of all iterators of this loader so far.

        - ``batches``, ``samples``: counts.
        - ``per_dataset``: samples of each dataset.
        - ``wait_s``: seconds that ``next`` waited.
        - ``read_s``, ``decode_s``, ``metadata_s``: seconds of work, added over workers and threads.
        - ``bytes``: bytes of records read.
        - ``requests``, ``remote_bytes``: requests that were sent for records of a remote root, repeated ones too, and
          bytes of their answers.
        - ``replaced``, ``replaced_records``: count of replaced rows; the last 100 errors.
        - ``ring_slots``, ``ring_bytes``: shared memory of the newest iterator.
        - ``left_out``: count of the samples of each dataset that were left out, by reason, see ``describe``.
        """
        left_out = dict(zip(self.data.names, self.data.views.left_out, strict=True))
        return {**self.counters.as_dict(), "left_out": left_out}

    def log_to(self, target: Any, every: int = 50) -> None:
        """Send figures of the iteration to a log of the run, after every some steps.

        - ``loader/waiting_share``: share of the time since the report before that ``next`` waited for data.
        - ``loader/samples_per_s``: samples a second, of all ranks together, which go in step.
        - ``loader/share/<dataset>``, ``loader/weight/<dataset>``: its share of all ranks' samples since the report
          before, and the share that the mixture asks for.
        - ``loader/epoch/<dataset>``: passes over its samples so far, 0.25 for a quarter of the first.
        - ``loader/replaced_rows``, ``loader/masked_rows``: rows of this rank so far that ``on_error="replace"``
          replaced, and that have a frame with mask False or pad the batch.

        Only rank 0 logs: ranks wait for each other, so each has the rate of all. Batches, their order and
        states stay as they are. If the target fails, a warning says so, and nothing more is logged.

        Args:
            target: A run of ``wandb.init`` or ``trackio.init``; a TensorBoard ``SummaryWriter``; a function of the
                step and a dict of floats; or None, for no log.
            every: Steps between two reports.

        Raises:
            ArgumentError: ``target`` is something else, or ``every`` is not a whole number from 1.
        """
        if target is not None and self.rank == 0:
            self.counters.watchers.append(RunLog(self.rank_plan, target, every=every))

    def save(self, path: str | Path) -> None:
        """Write ``loader.json``, for ``load_loader`` and ``pairstream replay``.

        The file defines the batches, the numbers of a normalisation included. Other transforms are code, of which the
        file has only the names.

        Args:
            path: File to write; an old file is replaced atomically.

        Raises:
            ArgumentError: ``path`` is not the name of a file.
            OSError: The file cannot be written.
        """
        save_loader(path, self.data, self.running)

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """Everything that defines the order of samples, and nothing else; states are bound to it."""
        return {"batch_size": self.batch_size, **self.data.fingerprint()}

    @cached_property
    def content(self) -> dict[str, Any]:
        """Everything that defines the batches beside the order of samples; states have it too."""
        return {**self.data.content(), **describe_transforms(self.running.transforms)}

    def state_at(self, step: int) -> dict[str, Any]:
        """Return the state of an iterator whose next batch is that of ``step``."""
        return make_state(step, self.fingerprint, content=self.content, random_ranks=self.running.random_ranks)

    def step_of(self, state: Any) -> int:
        """Return the step of a state; raises StateError if it belongs to another order of samples.

        A warning names what differs in the content of batches, such as ``normalize`` or ``image_size``.
        """
        step = read_state(state, self.fingerprint, random_ranks=self.running.random_ranks)
        if difference := describe_content(state.get("content"), self.content):
            _log.warning("the state is of the same samples in the same order, but of other batches: %s", difference)
        return step


def load_loader(
    path: str | Path, *, root: str | Path | None = None, cache: str | Path | None = None, **overrides: Any
) -> Loader:
    """Make the loader that a ``loader.json`` describes.

    The normalisation is that of the file. It has only the names of other transforms, so give them again. A warning
    names those that are missing.

    Args:
        path: File that ``Loader.save`` wrote.
        root: Place of the converted data, if they were moved.
        cache: Cache of a remote root, as for ``make_loader``.
        overrides: ``rank``, ``world_size``, ``num_workers``, ``threads``, ``prefetch``, ``transforms``, ``on_error``,
            ``num_steps`` or ``decode``, as for ``make_loader``; or ``normalize=False``, for values as stored. Others
            would define another run.

    Raises:
        StateError: The file is not a loader.json, or the data differ from those of the run; the message names the
            difference.
        ArgumentError: An override is wrong.
    """
    _check_platform()
    keeps_values = overrides.get("normalize") is False
    if keeps_values:
        del overrides["normalize"]
    for name in overrides:
        if name in SampleSpec.__dataclass_fields__ or name in ("batch_size", "normalize"):
            raise ArgumentError(f"{name}: {path} defines it, as another would be another run; use make_loader")
    check_names(overrides, RunConfig.__dataclass_fields__)
    data, running, saved = read_saved(path, root=root, cache=cache, overrides=overrides)
    if saved.code and "transforms" not in overrides:
        _log.warning(
            "%s: loaded without the transforms of the run, which are code: %s; give transforms=, [] for none",
            path,
            ", ".join(saved.code),
        )
    if keeps_values:
        running = replace(running, transforms=[t for t in running.transforms if not isinstance(t, Normalize)])
    return Loader(data, running, knows_ranks=bool({"rank", "world_size"} & set(overrides)))


def _check_platform() -> None:
    if sys.platform != "linux":
        raise OSError(
            f"batches are made in Linux's shared memory (memfd_create), and this is {sys.platform}; use Linux"
        )
