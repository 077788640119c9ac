"""OpenVLA and OpenVLA-OFT: inputs and outputs of their ``RLDSBatchTransform``, before the model's tokenizer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from stream.adapters.chunks import delay_of
from stream.adapters.sample import NO_VECTOR, Conversion, TrainerSample, check_data, check_preset, with_known_arguments
from stream.base.arguments import check_whole_number
from stream.sample.frames import Frames, check_size
from stream.sample.select import Select
from stream.sample.vector import Vector
from stream.statistics.deferred import choose_normalize

if TYPE_CHECKING:
    from stream.batch.spec import Batch
    from stream.loader.open_mixture import OpenMixture
    from stream.statistics.normalize import Normalize

Preset = Literal["openvla", "openvla_oft"]
QUESTION = "What action should the robot take to {}?"
BINS = np.linspace(-1, 1, 256)


@with_known_arguments
def sample(
    preset: Preset = "openvla",
    *,
    num_actions_chunk: int | None = None,
    wrist: bool | None = None,
    proprio: bool | None = None,
    image_size: tuple[int, int] = (224, 224),
    normalize: bool | str | Path | Normalize = True,
) -> TrainerSample:
    """Return the arguments of ``make_loader`` for OpenVLA's batches.

    - ``image`` uint8 [b, 224, 224, 3], resized with Lanczos, for the model's image transform; ``image_wrist`` alike.
    - ``prompt``: list of str, the question to the model with the instruction in lower case.
    - ``actions`` float32 [b, num_actions_chunk, 7], in the space ``oxe``: quantiles 0.01 and 0.99 of each dataset
      become -1 and 1. The gripper keeps its values; constant dimensions are 0.
    - ``action_bins`` int64 [b, num_actions_chunk, 7], from 1 to 256: the token is
      ``tokenizer.vocab_size - action_bins``.
    - ``proprio`` float32 [b, 7], the space ``eef`` with all dimensions normalised.
    - ``language`` list of str, and ``dataset_names`` list of str.

    Each chunk is complete: the last ``num_actions_chunk - 1`` steps of an episode, and steps without an action, are not
    samples, as in OpenVLA-OFT. Samples without an instruction are left out.

    Sources: ``prismatic/vla/datasets/datasets.py``, ``rlds/traj_transforms.py``, ``rlds/utils/data_utils.py`` and
    ``vla/action_tokenizer.py`` of both projects. Not done: tokenizer and image transform, which are the model's
    (``examples`` makes the inputs of their ``RLDSBatchTransform``); and image augmentation, a choice of the run.

    Args:
        preset: ``openvla``; or ``openvla_oft``, with the defaults of its LIBERO runs: chunks of 8, wrist and proprio.
        num_actions_chunk: Actions of a chunk: 1 for OpenVLA; 8 (LIBERO), 5 (Bridge) or 25 (ALOHA) for OpenVLA-OFT.
        wrist: Whether to load the wrist camera; it is black where a dataset has none.
        proprio: Whether to load the state.
        image_size: Height and width.
        normalize: True takes the statistics of each dataset. Give the path of a ``dataset_statistics.json``, a
            ``stream.Normalize``, or False for raw values.

    Raises:
        ArgumentError: An argument is wrong.
    """
    check_preset(preset, get_args(Preset))
    is_oft = preset == "openvla_oft"
    wrist, proprio = (is_oft if value is None else bool(value) for value in (wrist, proprio))
    chunk = (8 if is_oft else 1) if num_actions_chunk is None else num_actions_chunk
    chunk = check_whole_number("num_actions_chunk", chunk, least=1)
    cameras = ["primary", "wrist"] if wrist else ["primary"]
    return TrainerSample(
        frames=Frames(
            [0],
            cameras=cameras,
            size=check_size("image_size", image_size),
            filter="lanczos",
            on_missing_camera="mask",
        ),
        action=Vector(chunk, space="oxe"),
        state=Vector(space="eef") if proprio else NO_VECTOR,
        select=Select(where=[("language", "!=", "")], min_future_actions=chunk),
        transforms=(
            *choose_normalize(
                normalize, {"method": "openvla", "keys": ("action", "state") if proprio else ("action",)}
            ),
            ToOpenvla(wrist=wrist, proprio=proprio),
        ),
    )


def examples(batch: Batch) -> list[dict[str, Any]]:
    """Return the rows of a batch as the RLDS elements that ``RLDSBatchTransform`` of OpenVLA and OpenVLA-OFT takes."""
    elements = []
    for row, dataset_name in enumerate(batch["dataset_names"]):
        observation = {"image_primary": batch["image"][row, None]}
        if "image_wrist" in batch:
            observation["image_wrist"] = batch["image_wrist"][row, None]
        if "proprio" in batch:
            observation["proprio"] = batch["proprio"][row, None]
        task = {"language_instruction": batch["language"][row].encode()}

        element = {"dataset_name": dataset_name, "action": batch["actions"][row]}
        elements.append({**element, "observation": observation, "task": task})
    return elements


@dataclass(frozen=True, eq=False)
class ToOpenvla(Conversion):
    """Conversion of a batch.

    Attributes:
        wrist, proprio: Whether the batch has these.
        names: Names of the datasets.
    """

    wrist: bool
    proprio: bool
    names: tuple[str, ...] = ()

    def bind(self, data: OpenMixture) -> ToOpenvla:
        """Return the conversion with the datasets of a loader; raise ArgumentError for data that do not fit."""
        check_data(data, ("action", "language"), cameras=["primary", "wrist"] if self.wrist else ["primary"])
        return replace(self, names=data.names)

    def map(self, batch: Batch) -> Batch:
        """Return the batch of OpenVLA."""
        instructions = [text.lower() for text in batch["language"]]
        actions = batch["action"]
        bins = np.digitize(actions.clip(-1, 1), BINS)
        converted: Batch = {
            "image": batch["frames/primary"][:, 0],
            "prompt": [QUESTION.format(text) for text in instructions],
            "actions": actions,
            "action_bins": bins,
            "language": instructions,
            "dataset_names": [self.names[number] for number in batch["dataset"].tolist()],
        }
        if self.wrist:
            converted["image_wrist"] = batch["frames/wrist"][:, 0]
        if self.proprio:
            converted["proprio"] = batch["state"]
        return converted | delay_of(batch)
