"""The values of episodes as ``make_loader`` gives them, to compare batches of trainers with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from stream import Loader, make_loader

UNITS: dict[str, Any] = {"action_space": "eef_delta", "state_space": "eef"}


class Raw:
    """The steps of a dataset with an action: frames, action, state and instruction, by episode and step.

    ``root`` has the layout ``frames``; ``arguments`` are further ones of ``make_loader``.
    """

    def __init__(self, root: Path, dataset: str, **arguments: Any) -> None:
        def load(batch_size: int) -> Loader:
            chosen: Any = {"batch_size": batch_size, "shuffle": "none", **arguments}
            return make_loader(root, dataset, frames=[0], cameras=["primary"], horizon=1, **chosen)

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
