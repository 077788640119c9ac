"""Latent action models: the two frames of LAPA's quantiser and of UniVLA's latent action model."""

from __future__ import annotations

import string
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from stream.adapters.images import as_float
from stream.adapters.sample import NO_VECTOR, Conversion, TrainerSample, check_data, check_preset, with_known_arguments
from stream.sample.frames import Frames, check_size
from stream.sample.select import Select

if TYPE_CHECKING:
    from stream.batch.spec import Batch
    from stream.loader.open_mixture import OpenMixture

Preset = Literal["lapa", "univla"]
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@with_known_arguments
def sample(
    preset: Preset = "lapa", *, offset: int | str = "offset", image_size: tuple[int, int] | None = None
) -> TrainerSample:
    """Return the arguments of ``make_loader`` for a latent action model: the frames of t and t + offset.

    For LAPA's ``LatentActionQuantization``:

    - ``video`` float32 [b, 3, 2, 256, 256], from 0 to 1, resized bilinearly.

    For UniVLA's latent action model, of samples with an instruction:

    - ``videos`` float32 [b, 2, 3, 224, 224], from 0 to 1, resized with Lanczos.
    - ``task_instruction``: list of str, in lower case and without punctuation.
    - ``dataset_names``: list of str.

    Beyond the episode the second frame is the last one. The layout ``pairs`` has only complete pairs.

    Sources: LAPA's ``laq/laq_model/data.py`` and ``laq_trainer.py``, whose trainer takes only ``batch["video"]``.
    UniVLA's ``latent_action_model/genie/dataset.py``, ``prismatic/util/data_utils.py`` (``CollatorForLatentAction``)
    and ``prismatic/vla/datasets/rlds/traj_transforms.py``. Not done for UniVLA: ``action``, which the model does not
    read; image augmentation; and its table of intervals, which ``offset`` replaces.

    Args:
        preset: ``lapa`` or ``univla``.
        offset: Second frame, as in ``stream.Frames``: steps, ``"1s"``, ``"1..10"``, or each dataset's ``"offset"``.
        image_size: Height and width, by default 256 for LAPA and 224 for UniVLA.

    Raises:
        ArgumentError: An argument is wrong.
    """
    check_preset(preset, get_args(Preset))
    is_lapa = preset == "lapa"
    default_size = (256, 256) if is_lapa else (224, 224)
    size = check_size("image_size", default_size if image_size is None else image_size)
    return TrainerSample(
        frames=Frames(
            [0, offset],
            cameras=["primary"],
            size=size,
            filter="bilinear" if is_lapa else "lanczos",
            edges="repeat",
        ),
        action=NO_VECTOR,
        state=NO_VECTOR,
        language=None if is_lapa else "language",
        select=Select() if is_lapa else Select(where=[("language", "!=", "")]),
        transforms=(ToLapa() if is_lapa else ToUnivla(),),
    )


@dataclass(frozen=True)
class ToLapa(Conversion):
    """Conversion of a batch."""

    def bind(self, data: OpenMixture) -> ToLapa:
        """Check the data of a loader; raise ArgumentError for a depth camera."""
        check_data(data, (), cameras=["primary"])
        return self

    def map(self, batch: Batch) -> Batch:
        """Return the batch of LAPA."""
        frames = as_float(batch["frames/primary"])
        return {"video": np.ascontiguousarray(frames.swapaxes(1, 2))}


@dataclass(frozen=True)
class ToUnivla(Conversion):
    """Conversion of a batch, with the names of the datasets."""

    names: tuple[str, ...] = ()

    def bind(self, data: OpenMixture) -> ToUnivla:
        """Return the conversion with the datasets of a loader; raise ArgumentError for a depth camera."""
        check_data(data, ("language",), cameras=["primary"])
        return replace(self, names=data.names)

    def map(self, batch: Batch) -> Batch:
        """Return the batch of UniVLA."""
        return {
            "videos": as_float(batch["frames/primary"]),
            "task_instruction": [text.lower().translate(_NO_PUNCTUATION) for text in batch["language"]],
            "dataset_names": [self.names[number] for number in batch["dataset"].tolist()],
        }
