"""``pairstream.show`` draws a batch for a notebook, and what a notebook shows of loaders, rows and episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pairstream
import stream
from stream import ArgumentError, Frames, Loader, make_loader
from stream.base.html import Markup, html_picture, html_table
from stream.order.reference import SampleRef


@pytest.fixture(scope="module")
def loader(frames_root: Path) -> Loader:
    cameras = ["primary", "wrist"]
    return make_loader(
        frames_root, "bridge,droid", batch_size=8, frames=Frames([-5, 0], cameras=cameras, edges="repeat")
    )


def test_a_batch_becomes_rows_with_the_names_of_its_datasets(loader: Loader) -> None:
    batch = loader.batch_at(3)
    named, numbered = pairstream.show(batch, loader), pairstream.show(batch)
    assert named.count("<img") == numbered.count("<img")
    assert "droid train" in named and "droid train" not in numbered
    assert pairstream.show(batch, rows=2).count("class='batch-row") == 2
    assert named._repr_html_() == named


def test_frames_that_do_not_exist_are_empty_boxes(loader: Loader) -> None:
    batch: dict[str, Any] = dict(loader.batch_at(3))
    for key in ("frames_mask/primary", "frames_mask/wrist"):
        batch[key][:] = True
    assert pairstream.show(batch).count("<img") == 32
    batch["frames_mask/wrist"][:] = False
    shown = pairstream.show(batch)
    assert (shown.count("<img"), shown.count("<div class='missing'>")) == (16, 16)


@pytest.mark.long
def test_tensors_are_drawn_as_arrays_are(loader: Loader) -> None:
    as_tensors = pytest.importorskip("stream.torch").as_tensors
    batch = loader.batch_at(3)
    assert pairstream.show(as_tensors(batch)) == pairstream.show(batch)


def test_a_batch_without_its_origin_needs_its_loader(frames_root: Path) -> None:
    loader = make_loader(frames_root, "bridge", batch_size=4, action=None, state=None, language=None)
    batch = loader.batch_at(1)
    with pytest.raises(ArgumentError, match="lacks language; give its loader"):
        pairstream.show(batch)
    assert "bridge train" in pairstream.show(batch, loader)
    with pytest.raises(ArgumentError, match="samples 4 to 7 are no batch of this loader"):
        pairstream.show(batch, make_loader(frames_root, "bridge", batch_size=3))


def test_what_is_no_batch_with_frames_is_refused_with_what_to_do(loader: Loader, frames_root: Path) -> None:
    encoded = make_loader(frames_root, "bridge", batch_size=4, frames=Frames(decode="device"))
    values: list[tuple[Any, str]] = [
        (stream.samples(frames_root, "bridge")[0], "has no dimension of rows"),
        (encoded.batch_at(0), r"no frames, its keys are .*batch_on_host"),
        (make_loader(frames_root, "bridge", batch_size=4, frames=None).batch_at(0), "make a loader with frames"),
        (loader, r"show: Loader\(2 datasets.*; expected a batch, such as loader\.batch_at"),
    ]
    for value, message in values:
        with pytest.raises(ArgumentError, match=message):
            pairstream.show(value, encoded)


def test_a_notebook_shows_the_mixture_of_a_loader(loader: Loader) -> None:
    shown: Any = loader._repr_html_()
    assert "8 rows a batch" in shown
    assert shown.count("<tr>") == 1 + len(loader.dataset_names)
    assert all(f">{name}</td>" in shown and f">{size:,}</td>" in shown for name, size in loader.sizes.items())


def test_a_notebook_shows_an_episode_as_strips_of_its_cameras(loader: Loader) -> None:
    shown = loader.episode("droid", 0)._repr_html_()
    assert "frames/primary" in shown and "frames/wrist" in shown
    assert shown.count("<img") == 16


def test_texts_of_the_data_are_no_markup(loader: Loader) -> None:
    ref = SampleRef(**{**vars(loader.describe(0)[0]), "language": "<script>alert(1)</script>"})
    assert "&lt;script&gt;" in ref._repr_html_() and "<script>" not in ref._repr_html_()
    assert html_table(["<b>"], [[Markup("<b>")]]).count("<b>") == 1


def test_depth_and_empty_depth_become_pictures() -> None:
    for depth in (np.zeros((4, 4), np.uint16), np.full((4, 4), 900, np.uint16)):
        assert html_picture(depth, 'step "1"').startswith('<img src="data:image/png;base64,')
