"""The bitwise tests of the loader, against roots that are read in place from a slow store that fails and stalls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from convert.plan import ConvertConfig
from convert.shard.images import FramePolicy
from stream import Loader, digest, make_loader
from tests.fixtures.datasets.rlds_dataset import convert_dataset, demo_episode, write_dataset
from tests.fixtures.object_stores import object_store, seen_through, unreliable, upload_tree
from tests.stream.batch import test_raw as raw
from tests.stream.loader import test_loader as plain
from tests.stream.loader import test_windows as windows

pytestmark = pytest.mark.long

roots = raw.roots
test_raw_windows = raw.test_the_pixels_of_windows_are_those_of_the_source


@pytest.mark.parametrize("num_workers", [0, 3])
def test_batches_do_not_depend_on_workers(num_workers: int, oxe_root: Path) -> None:
    plain.test_batches_do_not_depend_on_workers_and_threads(oxe_root, num_workers, 2)


def test_the_ranks_batches_in_a_row_are_the_global_batch(oxe_root: Path) -> None:
    plain.test_the_ranks_batches_in_a_row_are_the_global_batch(oxe_root, 3)


def test_a_run_is_resumed_with_other_workers_and_ranks(oxe_root: Path) -> None:
    plain.test_a_run_can_be_resumed_with_other_workers_and_ranks(oxe_root, (2, 2), (0, 3))


def test_pairs_from_frames_are_the_stored_pairs(oxe_root: Path, frames_root: Path) -> None:
    windows.test_a_pair_from_frames_is_bitwise_the_stored_pair({}, oxe_root, frames_root)


def test_raw_pixels_are_those_of_the_source(roots: dict[str, Path]) -> None:
    raw.test_the_pixels_of_pairs_are_those_of_the_source(roots, 2)


@pytest.mark.parametrize("codec", ["jpeg", "h264", "raw"])
def test_windows_of_every_codec_are_those_of_the_disk(codec: Any, upload: Any, tmp_path: Path) -> None:
    episodes = [[demo_episode(steps, seed=steps + shard, size=(96, 128)) for steps in (12, 9)] for shard in range(3)]
    dataset = write_dataset(tmp_path / "source", splits={"train": episodes})
    options = ConvertConfig(layout="frames", policy=FramePolicy(size=None, codec=codec))
    convert_dataset(dataset.conversion(tmp_path / codec, options))
    arguments: dict[str, Any] = {"batch_size": 8, "num_steps": 10, "frames": (-2, 0, "1..3", "goal"), "bounds": "clamp"}
    for shuffle in ("global", "block:8"):
        more: dict[str, Any] = {"num_workers": 2, "shuffle": shuffle, "cache": tmp_path / f"cache-{len(shuffle)}"}
        far = make_loader(upload(tmp_path / codec), "demo", **arguments, **more)
        near = make_loader(tmp_path / codec, "demo", **arguments, shuffle=shuffle)
        assert [digest(batch) for batch in far] == [digest(batch) for batch in near]


@pytest.fixture(scope="module", params=["s3", "gs"])
def upload(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a function that stores a root once, and returns its address."""
    uploaded: dict[Path, str] = {}
    with object_store(request.param, tmp_path_factory.mktemp("store") / "log") as store:

        def address(root: Path) -> str:
            if root not in uploaded:
                uploaded[root] = f"{store.new_bucket()}/oxe"
                upload_tree(root, uploaded[root])
            return uploaded[root]

        with seen_through(store, unreliable(every=100)):
            yield address


@pytest.fixture(autouse=True)
def in_place(upload: Any, oxe_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tests open roots in place; what they compare with comes from the disk."""
    plain.reference(oxe_root)

    def far_loader(root: Path, *arguments: Any, **more: Any) -> Loader:
        return make_loader(upload(root), *arguments, **more, cache=tmp_path / f"cache-{root.name}")

    for module in (plain, windows, raw):
        monkeypatch.setattr(module, "make_loader", far_loader)
