"""The bitwise tests of the loader, against roots that are read in place from a slow store that fails and stalls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stream import Loader, make_loader
from tests.fixtures.object_stores import object_store, seen_through, unreliable, upload_tree
from tests.stream.loader import test_loader as plain
from tests.stream.loader import test_raw as raw
from tests.stream.loader import test_windows as windows

pytestmark = pytest.mark.long

test_workers = plain.test_batches_do_not_depend_on_workers_and_threads
test_without_transforms = plain.test_batches_without_transforms_do_not_depend_on_workers_either
test_ranks = plain.test_the_ranks_batches_in_a_row_are_the_global_batch
test_resume = plain.test_a_run_can_be_resumed_with_other_workers_and_ranks
test_windows = windows.test_a_batch_is_what_loops_over_episodes_give
test_drawn_frames = windows.test_random_frames_are_the_same_on_any_number_of_workers_and_ranks
test_resumed_windows = windows.test_a_run_with_windows_goes_on_where_it_stopped
test_raw_pairs = raw.test_the_pixels_of_pairs_are_those_of_the_source
test_raw_windows = raw.test_the_pixels_of_windows_are_those_of_the_source
roots, slow = raw.roots, windows.slow


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
