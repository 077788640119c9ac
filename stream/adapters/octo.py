"""Octo: batches as its ``make_interleaved_dataset`` gives them, before the text processor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from stream.adapters.chunks import dropped_steps, repeat_edges, whole_chunks
from stream.adapters.images import resize
from stream.adapters.opening import open_loader
from stream.order.random_numbers import row_random

if TYPE_CHECKING:
    from stream.batch.spec import Batch
    from stream.loader.loader import Loader
    from stream.loader.normalize import Normalize

SIZES = {"primary": (256, 256), "wrist": (128, 128)}


def loader(
    root: str | Path,
    mixture: Any,
    *,
    batch_size: int,
    window_size: int = 2,
    action_horizon: int = 4,
    goals: bool = True,
    keep_image_prob: float = 0.5,
    sizes: Mapping[str, tuple[int, int]] = SIZES,
    proprio: bool = False,
    normalize: bool | Normalize = True,
    transforms: Sequence[Any] = (),
    **arguments: Any,
) -> Loader:
    """Return a loader of Octo's batches, with W = window_size and H = action_horizon.

    - ``observation``: ``image_<camera>`` uint8 [b, W, height, width, 3], resized with Lanczos; ``timestep`` int32
      [b, W]; ``timestep_pad_mask`` bool [b, W], False before the episode, where the first step is repeated;
      ``task_completed`` bool [b, W, H]; ``pad_mask_dict`` with bool [b, W] by key; with ``proprio`` also ``proprio``
      float32 [b, W, 7], the space ``eef``.
    - ``task``: ``language_instruction``, an array of b bytes; ``pad_mask_dict`` with bool [b] by key; with ``goals``
      also ``image_<camera>`` uint8 [b, height, width, 3] and ``timestep`` int32 [b].
    - ``action`` float32 [b, W, H, 7], in the space ``oxe``, of mean 0 and standard deviation 1 but for the gripper.
      Steps beyond the episode repeat the last action.
    - ``action_pad_mask`` bool [b, W, H, 7], False where ``task_completed``: as in Octo, from two steps after the goal.
    - ``dataset_name``: array of b bytes.

    With ``goals`` each row keeps its goal images (with ``keep_image_prob``, or if it has no instruction) or its
    instruction. The goal is a random later step, and of the last step the step itself; Octo may also draw t.

    Sources: ``octo/data/traj_transforms.py``, ``obs_transforms.py``, ``utils/goal_relabeling.py`` and
    ``utils/task_augmentation.py``. Not done: the text processor, paraphrases, image augmentation, and the
    goal's state, which Octo's models do not read.

    Args:
        root: As for ``make_loader``. History and goals need ``--layout frames``.
        mixture: As for ``make_loader``.
        batch_size: Rows of the global batch.
        window_size: Observations of a sample.
        action_horizon: Actions from each observation on.
        goals: Whether to load goal images.
        keep_image_prob: Probability of goal images instead of the instruction.
        sizes: Height and width of each camera.
        proprio: Whether to load the state.
        normalize: True takes the statistics of each dataset; or a normalisation, or False for raw values.
        transforms: Transforms of batches as ``make_loader`` gives them, before the conversion.
        arguments: Other arguments of ``make_loader``.

    Raises:
        ArgumentError: As for ``make_loader``.
    """
    history = list(range(1 - window_size, 1))
    settings = [
        {"method": "mean_std", "keys": ("action",)},
        {"method": "mean_std", "keys": ("state",), "leave": ()},
    ]
    given = {
        "batch_size": batch_size,
        "cameras": list(sizes),
        "frames": [*history, "goal"] if goals else history,
        "bounds": "clamp" if goals or window_size > 1 else "inside",
        "action_from": history[0],
        "horizon": window_size - 1 + action_horizon,
        "state_from": history[0],
        "state_horizon": window_size,
        "action_space": "oxe",
        "state_space": "eef" if proprio else None,
        **arguments,
    }
    return open_loader(
        root,
        mixture,
        convert=lambda data, _: ToOcto(
            names=tuple(name.encode() for name in data.names),
            sizes=dict(sizes),
            shape=(window_size, action_horizon),
            goal_prob=keep_image_prob if goals else None,
            proprio=proprio,
            dropped=tuple(dropped_steps(data)[:, 1].tolist()),
            seed=data.options.seed,
        ),
        normalize=normalize,
        settings=settings[: 1 + proprio],
        keep=whole_chunks,
        transforms=transforms,
        columns=("num_steps",),
        arguments=given,
    )


@dataclass(frozen=True)
class ToOcto:
    """Conversion of a batch.

    Attributes:
        names: Names of the datasets.
        sizes: Height and width of each camera.
        shape: Observations of a sample, and actions from each.
        goal_prob: Probability of goal images, None for no goals.
        proprio: Whether the batch has the state.
        dropped: Count of the last steps of an episode that are left out, by dataset.
        seed: Seed of the choice between goal and instruction.
    """

    names: tuple[bytes, ...]
    sizes: Mapping[str, tuple[int, int]]
    shape: tuple[int, int]
    goal_prob: float | None
    proprio: bool
    dropped: tuple[int, ...]
    seed: int

    def map(self, batch: Batch) -> Batch:
        """Return the batch of Octo."""
        width, ahead = self.shape
        rows, t = len(batch["step"]), batch["step"][:, None]
        history = t + np.arange(1 - width, 1)
        inside = history >= 0
        last = batch["num_steps"].astype(np.int64) - 1 - np.array(self.dropped)[batch["dataset"]]
        images, present = self._images(batch, inside)
        real = np.ones((rows, width), bool)
        seen: Batch = {f"image_{name}": frames[:, :width] for name, frames in images.items()}
        seen["timestep"] = np.maximum(history, 0).astype(np.int32)
        masks = {f"image_{name}": mask[:, :width] for name, mask in present.items()} | {"timestep": real}
        if self.proprio:
            state, mask = (each.reshape(rows, width, -1) for each in (batch["state"], batch["state_mask"]))
            seen["proprio"], masks["proprio"] = repeat_edges(state, mask)[0], real
        task, goal = self._task(batch, images, present, last)
        completed = (history[:, :, None] + np.arange(ahead)) - 2 >= goal[:, None, None]
        action, mask = batch["action"], batch["action_mask"]
        filled, _ = repeat_edges(action, mask)
        chosen = np.maximum(history, 0)[:, :, None] + np.arange(ahead) - (t - width + 1)[:, :, None]
        chosen = np.minimum(chosen, action.shape[1] - 1).reshape(rows, -1, 1)
        chunks = np.take_along_axis(filled, chosen, axis=1).reshape(rows, width, ahead, -1)
        return {
            "observation": {**seen, "timestep_pad_mask": inside, "pad_mask_dict": masks, "task_completed": completed},
            "task": task,
            "action": chunks,
            "action_pad_mask": mask.any(axis=1)[:, None, None, :] & ~completed[..., None],
            "dataset_name": np.array([self.names[number] for number in batch["dataset"].tolist()], object),
        }

    def _images(self, batch: Batch, inside: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return frames and whether they are real, by camera; a repeated frame of the episode is real."""
        images, present = {}, {}
        for name, size in self.sizes.items():
            mask = batch[f"frames_mask/{name}"]
            repeated = batch["frame_step"] == batch["step"][:, None]
            repeated[:, : inside.shape[1]] |= ~inside
            images[name] = resize(batch[f"frames/{name}"], size, Image.Resampling.LANCZOS)
            present[name] = mask | (repeated & mask[:, inside.shape[1] - 1, None])
        return images, present

    def _task(
        self, batch: Batch, images: dict[str, np.ndarray], present: dict[str, np.ndarray], last: np.ndarray
    ) -> tuple[Batch, np.ndarray]:
        """Return the task of each row and the step at which it is done, int64 [b]."""
        texts = np.array([text.encode() for text in batch["language"]], object)
        told = texts != b""
        if self.goal_prob is None:
            return {"language_instruction": texts, "pad_mask_dict": {"language_instruction": told}}, last
        keeps = (row_random(batch, seed=self.seed)[:, 0] < self.goal_prob) | ~told
        goal = np.where(keeps, np.minimum(batch["frame_step"][:, -1], last), last)
        task: Batch = {f"image_{name}": frames[:, -1] * keeps[:, None, None, None] for name, frames in images.items()}
        masks = {f"image_{name}": mask[:, -1] & keeps for name, mask in present.items()}
        masks |= {"language_instruction": told & ~keeps, "timestep": np.ones(len(goal), bool)}
        task |= {"language_instruction": np.where(keeps, b"", texts).astype(object), "timestep": goal.astype(np.int32)}
        return {**task, "pad_mask_dict": masks}, goal
