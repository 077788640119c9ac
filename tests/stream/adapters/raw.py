"""The values of episodes as ``make_loader`` gives them, to compare batches of trainers with; and changes of samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stream import Frames, Loader, make_loader
from stream.adapters.sample import TrainerSample

UNITS: dict[str, Any] = {"action": {"space": "eef_delta"}, "state": {"space": "eef"}}


def changed(sample: TrainerSample, **changes: Any) -> TrainerSample:
    """Return a sample with other arguments; a mapping changes fields of an object, such as ``action``."""
    objects = {
        name: replace(getattr(sample, name), **value) if isinstance(value, Mapping) else value
        for name, value in changes.items()
    }
    return replace(sample, **objects)


def keep_units(sample: TrainerSample) -> TrainerSample:
    """Return a sample that takes datasets whose units no source specifies."""
    vectors = {name: {"on_unknown_units": "keep"} for name in ("action", "state") if sample[name] is not None}
    return changed(sample, **vectors)


def statistics_of(loader: Loader) -> dict[str, Any]:
    """Return the statistics that a loader normalises by, by vector and dataset."""
    assert loader.normalize is not None
    return {**loader.normalize.statistics}


class Raw:
    """The steps of a dataset with an action: frames, action, state and instruction, by episode and step.

    ``root`` has the layout ``frames``; ``arguments`` are further ones of ``make_loader``, ``action`` a mapping.
    """

    def __init__(self, root: Path, dataset: str, *, action: Mapping[str, Any] | None = None, **arguments: Any) -> None:
        def load(batch_size: int) -> Loader:
            chosen: Any = {"batch_size": batch_size, "shuffle": "none", **arguments}
            frames = Frames([0], cameras=["primary"])
            return make_loader(root, dataset, frames=frames, action={"steps": 1, **(action or {})}, **chosen)

        loader = load(1)
        self.batch = load(sum(loader.sizes.values())).batch_at(0)
        keys = zip(self.batch["episode"].tolist(), self.batch["step"].tolist(), strict=True)
        self.rows = {key: row for row, key in enumerate(keys)}
        (self.index,) = loader.data.sample_index.splits
        self.length = dict(enumerate(self.index.episodes.array("num_steps").tolist()))

    def action(self, episode: int, step: int) -> np.ndarray:
        """Return an action, float32 [A]."""
        return np.asarray(self.batch["action"][self.rows[episode, step], 0])

    def value(self, key: str, episode: int, step: int) -> Any:
        """Return a value of the batch at a step."""
        return self.batch[key][self.rows[episode, step]]


def places(loader: Loader, step: int = 0) -> list[tuple[int, int]]:
    """Return episode and step t of each row of a batch."""
    return [(ref.episode, ref.step) for ref in loader.describe(step)]
