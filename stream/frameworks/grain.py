"""Single samples for pipelines that are composed in Grain."""

from __future__ import annotations

import hashlib
import json
import operator
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from stream.base.arguments import check_names
from stream.base.errors import ArgumentError
from stream.base.quiet_grain import grain
from stream.batch.maker import BatchMaker, Setup
from stream.loader.members import member_frames
from stream.loader.open_mixture import OpenMixture, open_mixture
from stream.loader.sample_spec import SampleSpec
from stream.order.mixture import Mixture
from stream.order.rows import Rows
from stream.storage.cache_folder import CacheLike, cached_root
from stream.storage.remote import CachedRoot
from stream.workers.source import Replacer, make_here

Sample = dict[str, Any]


def _let_grain_read_its_flags() -> None:
    """Give Grain's flags their defaults in a program that has not parsed flags.

    Grain reads its flags when it starts worker processes. absl refuses before ``absl.app.run`` has parsed the command
    line, which scripts and notebooks never call. Other flags stay unparsed, and ``absl.app.run`` still reads Grain's
    from the command line.
    """
    if not flags.FLAGS.is_parsed():
        for name in flags.FLAGS:
            if name.startswith("grain_"):
                flags.FLAGS[name].present = True


_let_grain_read_its_flags()


class SamplesMapDataset(grain.MapDataset[Sample]):
    """The dataset that ``samples`` returns. A pickle has only the arguments, so that Grain's workers open the files.

    Attributes:
        data: Open mixture.
    """

    def __init__(self, root: Path | CachedRoot, mixture: Mixture, spec: SampleSpec, on_error: str) -> None:
        super().__init__()
        self._arguments = (root, mixture, spec, on_error)
        self.data = OpenMixture(root, mixture, spec)
        _ = self.data.check  # raises now, not with the first sample
        self._replacer = Replacer(self.data.plan, on_error)
        setup = Setup(spec=self.data.spec, transforms=(), seed=spec.seed, rank=0, rows=1, threads=1)
        self._maker = BatchMaker(setup)

    def __reduce__(self) -> tuple[Any, ...]:
        return SamplesMapDataset, self._arguments

    def __len__(self) -> int:
        return self.data.plan.num_samples or sys.maxsize // 16

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        index = operator.index(index)
        if not 0 <= index < len(self):
            raise ArgumentError(
                f"sample {index}; expected 0 to {len(self) - 1:,}: count from 0, and take further samples instead of "
                "repeating some"
            )
        return self.make(self.data.plan.rows(np.array([index], np.int64)))

    def __str__(self) -> str:
        return f"samples({len(self.data.names)} datasets)"

    def make(self, rows: Rows) -> Sample:
        """Return the sample of one row; arrays have no leading dimension."""
        batch = make_here(self._maker, self._replacer, -1, rows).batch
        return {batch_key: value[0] for batch_key, value in batch.items()}


def samples(
    root: str | Path,
    mixture: str | Path | Mapping[str, Any],
    *,
    split: str = "train",
    on_error: str = "raise",
    cache: CacheLike = None,
    **options: Any,
) -> SamplesMapDataset:
    """Return single samples in the order of ``make_loader``, as a Grain ``MapDataset``: element k is sample k.

    Without ``num_epochs`` the dataset has no end: its length is larger than any training, and weights define the
    shares. Epochs follow one another, each with its own random frames. A sampler that gives a number twice gets the
    same sample twice.

    Args:
        root: As for ``make_loader``.
        mixture: As for ``make_loader``.
        split: As for ``make_loader``.
        on_error: As for ``make_loader``.
        cache: As for ``make_loader``.
        options: Arguments of ``make_loader`` that define samples and their order: ``seed``, ``shuffle``,
            ``num_epochs``, ``frames``, ``action``, ``select`` and so on. A mixture with a schedule is refused.

    Returns:
        Dicts with the keys of a batch, without the leading dimension: ``frames`` uint8 [F, H, W, 3], ``action`` float32
        [W, A], ``language`` str, and so on.

    Raises:
        ArgumentError: As for ``make_loader``.
        RecordError: From an element, a record cannot be read.
    """
    opened = open_mixture(cached_root(root, cache), mixture, split=split, spec=_options(options))
    return SamplesMapDataset(opened.root, opened.mixture, opened.sample_spec, on_error)


def _options(arguments: Mapping[str, Any]) -> SampleSpec:
    check_names(arguments, SampleSpec.names())
    spec = SampleSpec(**arguments)
    if spec.frames is not None and spec.frames.decode == "device":
        raise ArgumentError("frames: decode='device' is for the batches of make_loader; take decode='host'")
    return spec


class SampleSource:
    """A random-access source of every sample of some datasets once, for ``grain.DataLoader`` and others.

    ``source[i]`` is a dict like an element of ``samples``, with ``sample`` i. The samples are in storage order, one
    dataset after the other; a sampler defines the order of training. Weights have no effect, but 0 leaves a dataset
    out. A sampler does not pass its epoch on. So random choices are refused, and ``row_random`` gives a sample the same
    numbers in every epoch. ``samples`` draws again in each epoch, and so does Grain's ``RandomMap``.

    Args:
        root: As for ``make_loader``.
        mixture: As for ``make_loader``.
        split: As for ``make_loader``.
        cache: As for ``make_loader``.
        options: Arguments of ``make_loader`` that define samples: ``frames``, ``action``, ``state``, ``language``,
            ``columns`` and ``select``, without random choices.

    Raises:
        ArgumentError: As for ``make_loader``.
        RecordError: From ``source[i]``, a record cannot be read.
    """

    def __init__(
        self,
        root: str | Path,
        mixture: str | Path | Mapping[str, Any],
        *,
        split: str = "train",
        cache: CacheLike = None,
        **options: Any,
    ) -> None:
        order_arguments = ("seed", "shuffle", "samples_per_episode", "num_epochs", "sample_weights")
        ordering = [argument for argument in order_arguments if argument in options]
        if ordering:
            raise ArgumentError(
                f"SampleSource has no {' and no '.join(ordering)}: a sampler defines the order, such as "
                "grain.samplers.IndexSampler(len(source), shuffle=True, seed=0)"
            )
        spec = _options({**options, "shuffle": "none"})
        opened = open_mixture(cached_root(root, cache), mixture, split=split, spec=spec)
        frames = [] if spec.frames is None else [spec.frames, *member_frames(opened.members, spec.frames)]
        random_choices = [choice for choices in frames for choice in choices.random_choices]
        random_choices += [spec.language] if len(spec.languages) > 1 else []
        for name, vector in spec.vectors.items():
            random_choices += [f"{name}={vector!r:.100}"] if vector.dropout or vector.has_delay else []
        if random_choices:
            raise ArgumentError(
                f"SampleSource cannot draw {random_choices[0]!r} again in each epoch, as a sampler does not pass its "
                "epoch on; take stream.samples, or a choice that is not random"
            )
        self._samples = SamplesMapDataset(opened.root, opened.mixture, opened.sample_spec, "raise")
        self._ends = np.cumsum(opened.sample_index.sizes)

    @property
    def dataset_names(self) -> tuple[str, ...]:
        """Names of the datasets, in storage order."""
        return self._samples.data.names

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Sample:
        index = operator.index(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        index %= len(self)
        member = int(np.searchsorted(self._ends, index, side="right"))
        position = index - (int(self._ends[member - 1]) if member else 0)
        sample_plan = self._samples.data.plan
        zeros = np.zeros(1, np.int64)
        split, record = sample_plan.sample_index.locate(zeros + member, zeros, zeros + position, seed=0, shuffle=False)
        rows = Rows.of(sample=zeros + index, member=zeros + member, epoch=zeros, split=split, record=record)
        return self._samples.make(rows)

    def __repr__(self) -> str:
        # Grain compares this text with that of a checkpoint's source.
        arguments = hashlib.sha256(json.dumps(self._samples.data.fingerprint()).encode()).hexdigest()[:16]
        return f"SampleSource({len(self)} samples of {len(self.dataset_names)} datasets, {arguments})"
