"""Transforms of a batch draw random numbers of its seed, step and rank."""

from __future__ import annotations

import grain
import numpy as np

from stream.batch.maker import apply_transforms
from stream.batch.spec import Batch


class Draw(grain.transforms.RandomMap):
    def random_map(self, batch: Batch, generator: np.random.Generator) -> Batch:
        return {**batch, "drawn": generator.random(3)}


def test_random_transforms_draw_by_seed_step_and_rank() -> None:
    def drawn(**options: int) -> list[float]:
        settings = {"seed": 1, "step": 2, "rank": 3, **options}
        return apply_transforms([Draw(), Draw()], {}, **settings)["drawn"].tolist()

    result = [drawn(), drawn(seed=2), drawn(step=3), drawn(rank=4), drawn(seed=-1)]
    assert len({tuple(drawn_values) for drawn_values in result}) == 5
    assert drawn() == result[0]
