"""The loader: a Grain dataset of mixed batches, of which every one can be had at any time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import grain

from stream.batch.spec import Batch, Decode, Metadata
from stream.batch.vectors import Reduction
from stream.loader.episode import Episode, read_episode
from stream.loader.iterator import LoaderIterator
from stream.loader.mixed import MixedData, Options, open_mixture
from stream.loader.running import Running
from stream.loader.saved import read_saved, save_loader
from stream.loader.state import make_state, read_state
from stream.loader.stats import Stats
from stream.loader.steps import Steps
from stream.order.reference import SampleRef
from stream.workers.job import BatchMaker
from stream.workers.ring import Ring
from stream.workers.source import BatchSource, ProcessSource, ThreadSource


def make_loader(
    root: str | Path,
    mixture: str | Path | Mapping[str, Any],
    *,
    batch_size: int,
    split: str = "train",
    seed: int = 0,
    num_workers: int = 0,
    threads: int | None = None,
    prefetch: int = 2,
    rank: int = 0,
    world_size: int = 1,
    metadata: Metadata = "full",
    action: Reduction = "window",
    horizon: int | None = None,
    action_columns: Mapping[str, Sequence[Any]] | None = None,
    state_columns: Mapping[str, Sequence[Any]] | None = None,
    columns: Sequence[str] = (),
    samples_per_episode: int = 0,
    shuffle: str = "global",
    filters: Any = None,
    transforms: Sequence[Any] = (),
    on_error: Literal["raise", "replace"] = "raise",
    num_steps: int | None = None,
    decode: Decode = "host",
) -> Loader:
    """Open a converted root and mix its datasets.

    Args:
        root: the folder that ``convert.run`` wrote, or ``stream.fetch`` brought.
        mixture: a mixture's name (``oxe29``), a dataset's name, a mapping of names to weights, or a YAML file.
            Weights are numbers, ``"size"``, or ``{"size_power": p, "factor": f}``; 0 leaves a dataset out.
        batch_size: rows of the global batch, at most 2^20; each rank gets ``batch_size / world_size``.
        split: for a mixture by name or file a role that it defines (``train``, ``val``); else TFDS's grammar, by
            episodes (``train[:90%]``, ``train+test``).
        seed: of the order of samples, and of random transforms.
        num_workers: processes, each of which makes whole batches; 0 makes them in a thread of this process.
        threads: threads of each worker, by default 1; without workers 2, or as many as this process has processors.
        prefetch: batches that are ready or under way while you work on one.
        rank, world_size: which rows of the global batch are this loader's.
        metadata: ``full``; ``dataset_only`` for frames, sample and dataset; ``none`` for frames and sample.
        action: ``window`` of all steps of the pair, or one action: ``sum``, ``mean`` or ``first``.
        horizon: steps of the action windows, from t on and up to the episode's end, at most 100,000; by default those
            of the pair.
        action_columns, state_columns: by dataset, the columns of the steps that make the vector, in place of the
            registry's: names, or ``(name, [indices])``.
        columns: further columns of the index, each a key of the batch: arrays with a ``_mask`` beside, or texts;
            with ``metadata="full"`` only.
        samples_per_episode: pairs of each episode in an epoch, 0 for all.
        shuffle: ``global``; ``block:N``, which draws N neighbouring records together; ``none``.
        filters: ``[(column, operator, value), ...]``, all of which must hold, or such lists by dataset.
        transforms: ``grain.transforms.Map`` or ``RandomMap``, applied to each batch where it is made.
        on_error: ``raise``, or ``replace``: another record of the same dataset takes the place of one that cannot be
            read.
        num_steps: steps after which iterating stops; None goes on for ever.
        decode: where JPEG is decoded: on the ``host``, where the batch is made, or by ``stream.torch.to_device`` on the
            ``device``. Then batches have encoded frames (``stream.batch.encoded``) until they are there.

    Raises:
        ArgumentError: anything of the above that cannot be, with what was found and what is there.
        stream.storage.errors.FormatError: a manifest or an index that is needed is damaged.
    """
    options = Options(
        seed=seed,
        shuffle=shuffle,
        samples_per_episode=samples_per_episode,
        filters=filters,
        metadata=metadata,
        action=action,
        horizon=horizon,
        action_columns=action_columns,
        state_columns=state_columns,
        columns=columns,
    )
    running = Running(
        batch_size=batch_size,
        num_workers=num_workers,
        threads=threads,
        prefetch=prefetch,
        rank=rank,
        world_size=world_size,
        transforms=transforms,
        on_error=on_error,
        num_steps=num_steps,
        decode=decode,
    )
    return Loader(open_mixture(root, mixture, split=split, options=options), running)


class Loader(grain.IterDataset[Batch]):
    """Batches of a mixture; see ``make_loader``, which makes one.

    Iterating gives batches from step 0 on, as dicts (b rows, this rank's):

    - ``frames`` uint8 [b, F, H, W, 3], RGB; F is 2 for pairs (t, t + offset). ``frames_mask`` bool [b, F] if datasets
      differ in F. With ``decode="device"``, ``frames_jpeg`` and ``frames_span`` instead (``stream.batch.encoded``).
    - ``action`` float32 [b, W, A] and ``action_mask`` bool alike (no W if reduced); ``state`` float32 [b, S],
      ``state_mask``. Beyond a dataset's own size, and beyond the pair's steps, values are 0 and the mask is False.
    - ``language`` list of b str; ``dataset`` int32 [b], numbers in ``dataset_names``.
    - ``episode``, ``step``, ``offset``, ``sample`` int64 [b]; episode counts in the split, in the order of its shards.

    The arrays lie in memory that is used again when the last of them, views and tensors included, is gone. Write into
    them as you like.
    """

    def __init__(self, data: MixedData, running: Running) -> None:
        super().__init__()
        self.data = data
        self.running = running
        self.batch_size = running.batch_size
        self.rank = running.rank
        self.world_size = running.world_size
        self.num_steps = running.num_steps
        self._order = data.order()
        self.counters = Stats(data.names)
        self.steps = Steps(data, running)

    @property
    def dataset_names(self) -> tuple[str, ...]:
        """Names of the datasets; ``batch["dataset"]`` counts in them."""
        return self.data.names

    @property
    def weights(self) -> dict[str, float]:
        """The share of each dataset that is really used, a multiple of 2^-20."""
        return self.data.weights

    @property
    def sizes(self) -> dict[str, int]:
        """Samples of one epoch of each dataset."""
        return self.data.sizes

    @property
    def action_names(self) -> dict[str, tuple[str, ...]]:
        """Name of each dimension of ``action``, by dataset; beyond them its values are padding."""
        return {name: vector.names for name, vector in zip(self.data.names, self.data.spec.actions, strict=True)}

    @property
    def state_names(self) -> dict[str, tuple[str, ...]]:
        """Name of each dimension of ``state``, by dataset."""
        return {name: vector.names for name, vector in zip(self.data.names, self.data.spec.states, strict=True)}

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which as many samples are drawn as all datasets have together, rounded up."""
        return -(-sum(self.sizes.values()) // self.batch_size)

    def __iter__(self) -> LoaderIterator:
        return LoaderIterator(self)

    def __str__(self) -> str:
        return f"Loader({len(self.dataset_names)} datasets, batch_size={self.batch_size})"

    def batch_at(self, step: int) -> Batch:
        """Return the batch of any step, the same as iterating gives, made in this process in fresh memory."""
        return self.steps.make(step).batch

    def batch_on_host(self, step: int) -> Batch:
        """Return the batch of a step with its frames decoded in this process, whatever ``decode`` is."""
        made = self.steps.on_host().make(step)
        self.counters.add_replaced(made.replaced)
        return made.batch

    def describe(self, step: int) -> list[SampleRef]:
        """Return where each row of a step comes from; no image is read.

        With ``on_error="replace"`` this is what was drawn; what stood in for it is in the batch and in ``stats()``.
        """
        return self.steps.describe(step)

    def episode(self, dataset: str, episode: int, *, split: str | None = None) -> Episode:
        """Return the steps and frames of an episode.

        Args:
            dataset: Name of a dataset of the mixture.
            episode: Number of the episode in its split, as in batches and ``describe``.
            split: Name of the split, needed if the samples of the dataset are of several.

        Raises:
            ArgumentError: There is no such dataset, split or episode.
            stream.storage.errors.FormatError: A record is damaged.
        """
        return read_episode(self.data, dataset, episode, split=split)

    def stats(self) -> dict[str, Any]:
        """Return what all iterators of this loader did so far.

        batches, samples, per_dataset; wait_s: seconds that ``next`` waited; read_s, decode_s, metadata_s: seconds of
        work, added over workers and threads; bytes: of records read; replaced: rows, and replaced_records the last 100
        of them; ring_slots, ring_bytes: of the newest iterator.
        """
        return self.counters.as_dict()

    def save(self, path: str | Path) -> None:
        """Write ``loader.json``: everything that defines the batches, transforms excepted (those are code; their names
        are noted). ``load_loader`` and ``python -m stream.replay`` read it."""
        save_loader(path, self.data, self.running)

    def state_at(self, step: int) -> dict[str, Any]:
        """Return the state of an iterator whose next batch is that of ``step``."""
        return make_state(int(step), self.batch_size, self._order, random_ranks=self.running.random_ranks)

    def step_of(self, state: Any) -> int:
        """Return the step of a state; raises StateError if it is of another order."""
        return read_state(state, self.batch_size, self._order, random_ranks=self.running.random_ranks)

    def make_source(self) -> tuple[BatchSource, Ring, int]:
        """Start workers or threads; returns them, their ring, and how many batches to keep under way."""
        self.data.check.start()
        workers, replacer = self.running.num_workers, self.steps.replacer
        # A maker of its own in this process too, whose threads end with the iterator.
        maker = self.steps.maker if workers else BatchMaker(self.steps.setup())
        ring = Ring(maker.slot_size)
        # Each worker has a batch in hand, and `prefetch` more are ready or under way.
        depth = self.running.prefetch + max(1, workers)
        ring.reserve(depth + 1)
        source: BatchSource
        if workers:
            source = ProcessSource(maker, workers=workers, replacer=replacer, ring=ring)
        else:
            source = ThreadSource(replacer=replacer, ring=ring, maker=maker)
        return source, ring, depth


def load_loader(path: str | Path, *, root: str | Path | None = None, **overrides: Any) -> Loader:
    """Make the loader that a ``loader.json`` describes, without its transforms.

    Args:
        path: the file.
        root: where the converted data lie now, if not where they did.
        overrides: ``rank``, ``world_size``, ``num_workers``, ``threads``, ``prefetch``, ``transforms``, ``on_error``,
            ``decode``.

    Raises:
        StateError: not a loader.json, or the data are not those that it was written for; names what differs.
    """
    data, running = read_saved(path, root=root, overrides=overrides)
    return Loader(data, running)
