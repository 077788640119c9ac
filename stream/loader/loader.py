"""The loader: a Grain dataset of mixed batches with random access by step."""

from __future__ import annotations

import logging
from copy import copy
from dataclasses import replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, NoReturn, overload

from stream.base.html import html_table
from stream.base.quiet_grain import grain
from stream.batch.spec import Batch
from stream.format.names import VectorName
from stream.loader.episode import Episode, read_episode
from stream.loader.iterator import LoaderIterator
from stream.loader.open_mixture import OpenMixture
from stream.loader.rank_plan import RankPlan
from stream.loader.run_config import RunConfig
from stream.loader.run_log import RunLog
from stream.loader.sample_spec import SampleSpec
from stream.loader.saved import save_loader
from stream.loader.state import describe_content, make_state, read_state
from stream.order.reference import SampleRef
from stream.statistics.binding import bind_transforms, describe_transforms
from stream.statistics.normalize import Normalize

_log = logging.getLogger("stream")
_WAYS = (
    "iter(loader) gives its batches in turn, loader.batch_at(step) one of them, and a DataLoader of torch takes "
    "stream.torch.StreamDataset with batch_size=None"
)


class Loader(grain.IterDataset[Batch]):
    """Batches of a mixture, made by ``make_loader`` or ``load_loader``.

    Iteration returns batches from step 0 on: dicts of arrays and lists with this rank's b rows.

    - ``frames`` uint8 [b, F, H, W, 3], RGB; F is 2 for pairs (t, t + offset). With ``decode="device"`` the batch has
      ``frames_jpeg`` and ``frames_span`` instead (``stream.batch.encoded``).
      With several cameras each has its own key, such as ``frames/wrist``.
    - ``depth`` (``depth/wrist``) uint16 [b, F, H, W], millimetres, 0 where nothing was measured, if you choose a depth
      camera; with ``depth_mask`` (``depth_mask/wrist``) as ``frames_mask``.
    - ``frames_mask`` (``frames_mask/wrist``) bool [b, F], if you choose steps, cameras or ``edges="repeat"``, or
      datasets differ in F. False for a repeated edge of the episode, a damaged or dropped frame, and a camera that the
      dataset lacks.
    - ``frame_step`` int64 [b, F], the steps of the frames, if you choose steps, cameras or ``edges="repeat"``.
    - ``frame_time`` float32 [b, F], seconds from t to each frame, with ``times``.
    - ``action`` float32 [b, W, A], or [b, A] if reduced; of intervals between frames [b, F - 1, W, A] or [b, F - 1, A].
    - ``action_mask`` bool, shaped as ``action``. Vectors are padded to the largest dataset of the mixture, or have the
      numbers of their layout. Padding, steps beyond the pair, and features that a dataset lacks are 0, with mask False.
    - ``action_delay`` int32 [b] and ``action_prefix_mask`` bool [b, W], True for the first steps, with ``max_delay``.
    - ``state`` float32 [b, S], or [b, W, S] with more than 1 step.
    - ``state_mask`` bool, shaped as ``state``.
    - ``language`` list of b str.
    - ``dataset`` int32 [b], index in ``dataset_names``.
    - ``episode`` int64 [b], number in the split, in the order of its shards.
    - ``step`` int64 [b], t.
    - ``offset`` int64 [b], steps from t to the last frame of the sample.
    - ``sample`` int64 [b], global number of the sample.
    - ``sample_mask`` bool [b], with ``num_epochs``: False for rows that pad the last batch of several ranks.

    The arrays are writable. Their memory is reused when the last array, view or tensor over it is deleted.

    Attributes:
        batch_size: Rows of the global batch.
        rank: Number of this loader among the ranks.
        world_size: Number of ranks.
        num_workers: Worker processes of each iterator.
        num_steps: Step at which iteration stops, or None.
    """

    def __init__(
        self, mixture: OpenMixture, run_config: RunConfig, *, normalize: Any = None, knows_ranks: bool = True
    ) -> None:
        super().__init__()
        self.data = mixture
        run_config = replace(run_config, transforms=bind_transforms(run_config.transforms, mixture, normalize))
        self.run_config = run_config
        self.knows_ranks = knows_ranks
        self.rank_plan = RankPlan(mixture, run_config)
        self.batch_size = run_config.batch_size
        self.rank, self.world_size = run_config.ranks
        self.num_workers = run_config.workers.num_processes
        self.num_steps = self.rank_plan.num_steps
        self.counters = self.rank_plan.counters

    def with_ranks(self, rank: int, world_size: int) -> Loader:
        """Return a loader of the same mixture for another rank, with new counters and the same targets of ``log_to``.

        Raises:
            ArgumentError: The ranks are wrong, or do not divide ``batch_size``.
        """
        loader = Loader(self.data, replace(self.run_config, rank=rank, world_size=world_size))
        for run_log in self.counters.watchers:
            if isinstance(run_log, RunLog):
                loader.log_to(run_log.target, every=run_log.every)
        return loader

    def augmenting_on_device(self) -> Loader:
        """Return this loader with batches whose frames a device augments; it shares the counters."""
        loader = copy(self)
        loader.rank_plan = self.rank_plan.augmenting_on_device()
        loader.run_config = loader.rank_plan.run_config
        return loader

    @property
    def spec(self) -> SampleSpec:
        """Arguments that define the samples; its ``repr`` can be pasted into ``make_loader``."""
        return self.data.sample_spec

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
        """Name of each dimension of ``action``, by dataset; further dimensions are padding.

        In a layout (``Vector(slots=...)``) it is the name of each number, empty where the dataset has none.
        """
        return self._dim_names("action")

    @property
    def state_names(self) -> dict[str, tuple[str, ...]]:
        """Name of each dimension of ``state``, by dataset."""
        return self._dim_names("state")

    def _dim_names(self, vector_name: VectorName) -> dict[str, tuple[str, ...]]:
        dim_names = self.data.spec.dim_names(vector_name)
        return {name: dim_names[number] if dim_names else () for number, name in enumerate(self.data.names)}

    @property
    def normalize(self) -> Normalize | None:
        """The last normalisation of the transforms, to denormalise a model's output, to save or to export; or None."""
        normalisations = [item for item in self.run_config.transforms if isinstance(item, Normalize)]
        return normalisations[-1] if normalisations else None

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps that draw the sample count of all datasets together, rounded up."""
        return -(-sum(self.sizes.values()) // self.batch_size)

    def __iter__(self) -> LoaderIterator:
        return LoaderIterator(self)

    # Python's messages would not name the remedy.
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
        seed = self.data.sample_spec.seed
        settings = [f"{self.batch_size} rows a batch", f"{self.steps_per_epoch:,} steps an epoch", f"seed {seed}"]
        settings.append(f"{self.num_workers} workers")
        if self.world_size > 1:
            settings.append(f"rank {self.rank} of {self.world_size}")
        settings += [type(transform).__name__ for transform in self.run_config.transforms]
        splits = [member.entry.split for member in self.data.sample_index.members]
        dataset_rows = [
            (
                name,
                f"{self.weights[name]:.4f}",
                f"{self.sizes[name]:,}",
                split,
                ", ".join(filter(None, self.action_names[name])),
            )
            for name, split in zip(self.dataset_names, splits, strict=True)
        ]
        dataset_table = html_table(("dataset", "weight", "samples", "split", "action"), dataset_rows)
        return f"<p><b>Loader</b> {escape(', '.join(settings))}</p>{dataset_table}"

    def batch_at(self, step: int) -> Batch:
        """Return the batch of any step from 0 on, as iteration returns it, made in this process in new memory.

        Raises:
            RecordError: A record cannot be read, and ``on_error`` is ``raise``.
        """
        return self.rank_plan.make(step).batch

    def batch_on_host(self, step: int) -> Batch:
        """Return the batch of a step, as with ``decode="host"``."""
        result = self.rank_plan.on_host().make(step)
        self.counters.add_replaced(result.replaced)
        return result.batch

    @overload
    def describe(self, step: int) -> list[SampleRef]: ...

    @overload
    def describe(self) -> dict[str, dict[str, Any]]: ...

    def describe(self, step: int | None = None) -> list[SampleRef] | dict[str, dict[str, Any]]:
        """Return the origin of each row of a step, without reading images; without a step, an overview.

        The overview has by dataset:

        - ``split``, and ``ranges``: the episodes [start, stop) that it names, by TFDS split.
        - ``episodes``: count of these episodes. ``remaining_episodes``: count of the episodes with samples.
        - ``samples``: count of samples in an epoch.
        - ``left_out``: count of the other samples by reason (``window``, ``actions``, ``where``, ``episodes``,
          ``keep_ranges``, ``holes``). ``left_out_by_condition``: the same for each condition of ``where``. A sample
          with several reasons counts for the first.
        - ``unknown_episodes``: count of the named episodes that its splits lack.
        - ``labels``: columns that were added after the conversion (``stream.add_labels``).
        - ``damaged``: counts of what the conversion left out, by reason.
        - ``weight_0``: count of samples of weight 0, of a dataset with ``sample_weights``.

        With ``on_error="replace"`` the result has the samples that were drawn; the batch and ``stats()`` have their
        replacements.
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
        - ``requests``, ``remote_bytes``: requests for records of a remote root, including repeated requests, and bytes
          of their responses.
        - ``replaced``, ``replaced_records``: count of replaced rows; the last 100 errors.
        - ``ring_slots``, ``ring_bytes``: shared memory of the newest iterator.
        - ``left_out``: count of the left-out samples of each dataset by reason, as in ``describe``.
        """
        left_out = dict(zip(self.data.names, self.data.sample_index.left_out, strict=True))
        return {**self.counters.as_dict(), "left_out": left_out}

    def log_to(self, target: Any, every: int = 50) -> None:
        """Send figures of the iteration to a log of the run, every few steps.

        - ``loader/waiting_share``: share of the time since the last report that ``next`` waited for data.
        - ``loader/samples_per_s``: samples per second of all ranks together.
        - ``loader/share/<dataset>``, ``loader/weight/<dataset>``: its share of all ranks' samples since the last
          report, and its share in the mixture.
        - ``loader/epoch/<dataset>``: passes over its samples so far, 0.25 for a quarter of the first.
        - ``loader/replaced_rows``, ``loader/masked_rows``: rows of this rank so far that ``on_error="replace"``
          replaced, and rows that have a frame with mask False or pad the batch.

        Only rank 0 logs: ranks wait for each other, so all have the same rate. Batches, their order and states do not
        change. A failing target is reported once, as a warning, and gets no further figures.

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

        The file defines the batches, including the numbers of a normalisation. Of other transforms, which are code, it
        has only the names.

        Args:
            path: File to write; an old file is replaced atomically.

        Raises:
            ArgumentError: ``path`` is not the name of a file.
            OSError: The file cannot be written.
        """
        save_loader(path, self.data, self.run_config)

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """Everything that defines the order of samples, and nothing else; states are bound to it."""
        return {"batch_size": self.batch_size, **self.data.fingerprint()}

    @cached_property
    def content(self) -> dict[str, Any]:
        """Everything else that defines the batches, in addition to the order of samples; states have it too."""
        return {**self.data.content(), **describe_transforms(self.run_config.transforms)}

    def state_at(self, step: int) -> dict[str, Any]:
        """Return the state of an iterator whose next batch is that of ``step``."""
        return make_state(step, self.fingerprint, content=self.content, random_ranks=self.run_config.random_ranks)

    def step_of(self, state: Any) -> int:
        """Return the step of a state; raises StateError if it belongs to another order of samples.

        A warning names what differs in the content of batches, such as ``normalize`` or ``frames.size``.
        """
        step = read_state(state, self.fingerprint, random_ranks=self.run_config.random_ranks)
        if difference := describe_content(state.get("content"), self.content):
            _log.warning("the state is of the same samples in the same order, but of other batches: %s", difference)
        return step
