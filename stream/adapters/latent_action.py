"""Latent action models: the two frames of LAPA's quantiser and of UniVLA's latent action model."""

from __future__ import annotations

import string
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stream.adapters.images import as_float
from stream.adapters.opening import open_loader

if TYPE_CHECKING:
    from stream.batch.spec import Batch
    from stream.loader.loader import Loader

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def lapa_loader(
    root: str | Path,
    mixture: Any,
    *,
    offset: int | str = "offset",
    image_size: tuple[int, int] = (256, 256),
    **arguments: Any,
) -> Loader:
    """Return a loader for LAPA's ``LatentActionQuantization``.

    - ``video`` float32 [b, 3, 2, 256, 256], from 0 to 1, resized bilinearly: the frames of t and t + offset. Beyond the
      episode the second is the last frame.

    Sources: ``laq/laq_model/data.py`` and ``laq_trainer.py``. LAPA's trainer takes only the array, ``batch["video"]``.

    Args:
        root: As for ``make_loader``. The layout ``pairs`` has only complete pairs.
        mixture: As for ``make_loader``.
        offset: Second frame, as in ``frames`` of ``make_loader``: steps, ``"1s"``, ``"1..10"``, or each dataset's
            ``"offset"``.
        image_size: Height and width.
        arguments: Other arguments of ``make_loader``, such as ``batch_size`` and ``transforms``.

    Raises:
        ArgumentError: As for ``make_loader``.
    """
    return open_loader(
        root,
        mixture,
        adapter=lapa_loader,
        convert=lambda _: ToLapa(),
        preset={**_two_frames(offset, image_size, "bilinear"), "metadata": "dataset_only"},
        free=("bounds",),
        needs=(),
        arguments=arguments,
    )


def univla_loader(
    root: str | Path,
    mixture: Any,
    *,
    offset: int | str = "offset",
    image_size: tuple[int, int] = (224, 224),
    **arguments: Any,
) -> Loader:
    """Return a loader for UniVLA's latent action model.

    - ``videos`` float32 [b, 2, 3, 224, 224], from 0 to 1, resized with Lanczos: the frames of t and t + offset. Beyond
      the episode the second is the last frame.
    - ``task_instruction``: list of str, in lower case and without punctuation.
    - ``dataset_names``: list of str.

    Samples without an instruction are left out, unless you give ``filters``.

    Sources: ``latent_action_model/genie/dataset.py``, ``prismatic/util/data_utils.py`` (``CollatorForLatentAction``)
    and ``prismatic/vla/datasets/rlds/traj_transforms.py``. Not done: ``action``, which the model does not read; image
    augmentation; and UniVLA's table of intervals, which ``offset`` replaces.

    Args:
        root: As for ``lapa_loader``.
        mixture: As for ``make_loader``.
        offset: Second frame, as for ``lapa_loader``.
        image_size: Height and width.
        arguments: Other arguments of ``make_loader``, such as ``batch_size`` and ``transforms``.

    Raises:
        ArgumentError: As for ``make_loader``.
    """
    return open_loader(
        root,
        mixture,
        adapter=univla_loader,
        convert=lambda opened: ToUnivla(opened.names),
        preset={**_two_frames(offset, image_size, "lanczos"), "filters": [("language", "!=", "")]},
        free=("bounds",),
        needs=(),
        arguments=arguments,
    )


def _two_frames(offset: int | str, image_size: tuple[int, int], image_filter: str) -> dict[str, Any]:
    image_arguments = {"cameras": ["primary"], "image_size": image_size, "image_filter": image_filter}
    return {**image_arguments, "frames": [0, offset], "bounds": "clamp"}


@dataclass(frozen=True)
class ToLapa:
    """Conversion of a batch."""

    def map(self, batch: Batch) -> Batch:
        """Return the batch of LAPA."""
        frames = as_float(batch["frames/primary"])
        return {"video": np.ascontiguousarray(frames.swapaxes(1, 2))}


@dataclass(frozen=True)
class ToUnivla:
    """Conversion of a batch, with the names of the datasets."""

    names: tuple[str, ...]

    def map(self, batch: Batch) -> Batch:
        """Return the batch of UniVLA."""
        return {
            "videos": as_float(batch["frames/primary"]),
            "task_instruction": [text.lower().translate(_NO_PUNCTUATION) for text in batch["language"]],
            "dataset_names": [self.names[number] for number in batch["dataset"].tolist()],
        }
