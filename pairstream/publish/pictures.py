"""Pictures of datasets for their card: a strip of frames of different samples."""

from __future__ import annotations

import io
import logging

import numpy as np
from PIL import Image

from stream.base.errors import StreamError
from stream.format.catalog import Catalog, Dataset
from stream.loader.opening import make_loader
from stream.sample.frames import Frames

_FRAMES, _HEIGHT = 6, 144
_log = logging.getLogger("stream")


def draw_strip(catalog: Catalog, dataset: Dataset) -> bytes | None:
    """Return a JPEG with frames of some samples of a dataset next to each other, None if it has none to show."""
    split = max(dataset.manifest.splits, key=lambda name: dataset.manifest.splits[name].episodes)
    try:
        loader = make_loader(
            catalog.root,
            f"{dataset.name}:{dataset.version}",
            split=split,
            batch_size=_FRAMES,
            frames=Frames([0]),
            action=None,
            state=None,
            language=None,
            rank=0,
            world_size=1,
        )
        frames = loader.batch_at(0)["frames"][:, 0]
    except (StreamError, KeyError) as error:
        _log.warning("no picture of %s: %s", dataset.name, error)
        return None
    width = max(1, round(frames.shape[2] * _HEIGHT / frames.shape[1]))
    tiles = [np.asarray(Image.fromarray(frame).resize((width, _HEIGHT), Image.Resampling.BOX)) for frame in frames]
    strip = io.BytesIO()
    Image.fromarray(np.concatenate(tiles, axis=1)).save(strip, "JPEG", quality=88)
    return strip.getvalue()
