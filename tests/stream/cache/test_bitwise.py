"""Windows and pairs of every codec, read in place from a slow store that fails and stalls, are those of the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from convert.plan import ConvertConfig
from convert.shard.images import FramePolicy
from stream import Frames, digest, make_loader
from tests.fixtures.datasets.rlds_dataset import convert_dataset, demo_episode, write_dataset
from tests.fixtures.object_stores import Store, object_store, seen_through, unreliable, upload_tree

pytestmark = pytest.mark.long

WINDOWS: dict[str, Any] = {"frames": Frames((-2, 0, "1..3", "goal"), edges="repeat")}
RUNS: list[dict[str, Any]] = [
    {"num_workers": 3},
    {"num_workers": 2, "shuffle": "block:8"},
    {"num_workers": 1, "rank": 1, "world_size": 2},
]


@pytest.fixture(scope="module", params=["s3", "gs"])
def unreliable_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with (
        object_store(request.param, tmp_path_factory.mktemp("store") / "log") as store,
        seen_through(store, unreliable(every=100)),
    ):
        yield store


@pytest.mark.parametrize(
    ("layout", "codec"),
    [("pairs", "jpeg"), ("pairs", "raw"), ("frames", "jpeg"), ("frames", "raw"), ("frames", "h264")],
)
def test_batches_are_those_of_the_disk(codec: Any, layout: Any, unreliable_store: Store, tmp_path: Path) -> None:
    episodes = [[demo_episode(steps, seed=steps + shard, size=(96, 128)) for steps in (12, 9)] for shard in range(3)]
    dataset = write_dataset(tmp_path / "source", splits={"train": episodes})
    options = ConvertConfig(layout=layout, policy=FramePolicy(size=None, codec=codec))
    convert_dataset(dataset.conversion(tmp_path / codec, options))
    url = f"{unreliable_store.new_bucket()}/oxe"
    upload_tree(tmp_path / codec, url)
    for number, run in enumerate(RUNS):
        arguments = {"batch_size": 8, "num_steps": 10, **(WINDOWS if layout == "frames" else {}), **run}
        far = make_loader(url, "demo", **arguments, cache=tmp_path / f"cache{number}")
        near = make_loader(tmp_path / codec, "demo", **{**arguments, "num_workers": 0})
        assert [digest(batch) for batch in far] == [digest(batch) for batch in near]
