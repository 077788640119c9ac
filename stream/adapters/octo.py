"""Octo: batches as its ``make_interleaved_dataset`` gives them, before the text processor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from stream.adapters.chunks import delay_of, repeat_edges, take_steps
from stream.adapters.sample import (
    NO_VECTOR,
    Conversion,
    TrainerSample,
    check_data,
    check_mapping,
    check_preset,
    with_known_arguments,
)
from stream.base.arguments import check_whole_number
from stream.base.errors import ArgumentError
from stream.base.random_numbers import row_random
from stream.batch.dataset_vector import dropped_steps
from stream.sample.frames import Frames, MissingCamera, check_size
from stream.sample.vector import Vector
from stream.statistics.deferred import choose_normalize

if TYPE_CHECKING:
    from stream.batch.spec import Batch
    from stream.loader.open_mixture import OpenMixture
    from stream.statistics.normalize import Normalize

Preset = Literal["octo"]
SIZES = {"primary": (256, 256), "wrist": (128, 128)}


@with_known_arguments
def sample(
    preset: Preset = "octo",
    *,
    window_size: int = 2,
    action_horizon: int = 4,
    goals: bool = True,
    keep_image_prob: float = 0.5,
    sizes: Mapping[str, tuple[int, int]] | None = None,
    proprio: bool = False,
    normalize: bool | str | Path | Normalize = True,
) -> TrainerSample:
    """Return the arguments of ``make_loader`` for Octo's batches, with W = window_size and H = action_horizon.

    - ``observation``: ``image_<camera>`` uint8 [b, W, height, width, 3], resized with Lanczos; ``timestep`` int32
      [b, W]; ``timestep_pad_mask`` bool [b, W], False before the episode, where the first step is repeated, and where
      ``history_dropout`` of the frames drops all images; ``task_completed`` bool [b, W, H]; ``pad_mask_dict`` with bool
      [b, W] by key; with ``proprio`` also ``proprio`` float32 [b, W, 7], the space ``eef``.
    - ``task``: ``language_instruction``, an array of b bytes; ``pad_mask_dict`` with bool [b] by key; with ``goals``
      also ``image_<camera>`` uint8 [b, height, width, 3] and ``timestep`` int32 [b].
    - ``action`` float32 [b, W, H, 7], in the space ``oxe``, of mean 0 and standard deviation 1 but for the gripper.
      Steps beyond the episode repeat the last action.
    - ``action_pad_mask`` bool [b, W, H, 7], False where ``task_completed``: as in Octo, from two steps after the goal.
    - ``dataset_name``: array of b bytes.
    - ``action_delay``, ``action_prefix_mask``: as of ``make_loader``, if the action has a ``max_delay``, which needs
      ``window_size=1``.

    With ``goals`` each row keeps either its goal images (with ``keep_image_prob``, or if it has no instruction) or its
    instruction. The goal is a random later step, or t if the drawn step has no action or t is the last step; Octo may
    always draw t.

    As in Octo, an episode is first cut to its steps with an action. Other steps are neither history nor goals, and
    ``timestep`` counts from the first step with an action.

    Sources: ``octo/data/traj_transforms.py``, ``obs_transforms.py``, ``utils/goal_relabeling.py`` and
    ``utils/task_augmentation.py``. Not done: the text processor, which is the model's; paraphrases, which
    Octo reads from a file; image augmentation, which is a choice of the run; and the goal's state, which Octo's models
    do not read.

    Args:
        preset: ``octo``. History and goals need a root of ``--layout frames``.
        window_size: Observations of a sample.
        action_horizon: Actions from each observation on.
        goals: Whether to load goal images.
        keep_image_prob: Probability of goal images instead of the instruction.
        sizes: Height and width of each camera, by default ``SIZES``. A camera of ``SIZES`` that no dataset stores is
            black.
        proprio: Whether to load the state.
        normalize: True takes the statistics of each dataset. Give the path of a ``dataset_statistics.json``, a
            ``stream.Normalize``, or False for raw values.

    Raises:
        ArgumentError: An argument is wrong.
    """
    check_preset(preset, get_args(Preset))
    window_size = check_whole_number("window_size", window_size, least=1)
    action_horizon = check_whole_number("action_horizon", action_horizon, least=1)
    if not isinstance(keep_image_prob, float | int | np.floating) or not 0 <= keep_image_prob <= 1:
        raise ArgumentError(f"keep_image_prob={keep_image_prob!r:.100}; expected a number from 0 to 1")
    on_missing_camera: MissingCamera = "mask" if sizes is None else "error"
    sizes = check_mapping("sizes", SIZES if sizes is None else sizes, example="{'primary': (256, 256)}")
    sizes = {name: check_size(f"sizes[{name!r}]", image_size) for name, image_size in sizes.items()}
    history = list(range(1 - window_size, 1))
    return TrainerSample(
        frames=Frames(
            [*history, "goal"] if goals else history,
            cameras=list(sizes),
            size=sizes,
            filter="lanczos",
            edges="repeat" if goals or window_size > 1 else "drop",
            on_missing_camera=on_missing_camera,
        ),
        action=Vector(window_size - 1 + action_horizon, start=history[0], space="oxe"),
        state=Vector(window_size, start=history[0], space="eef") if proprio else NO_VECTOR,
        columns=("num_steps",),
        transforms=(
            *choose_normalize(normalize, {"method": "octo", "keys": ("action", "state") if proprio else ("action",)}),
            ToOcto(
                cameras=tuple(sizes),
                shape=(window_size, action_horizon),
                goal_prob=keep_image_prob if goals else None,
                proprio=proprio,
            ),
        ),
    )


@dataclass(frozen=True, eq=False)
class ToOcto(Conversion):
    """Conversion of a batch.

    Attributes:
        cameras: Names of the cameras.
        shape: Observations of a sample, and actions from each.
        goal_prob: Probability of goal images, None for no goals.
        proprio: Whether the batch has the state.
        names: Names of the datasets.
        dropped: Count of the steps that are cut off at either end of an episode, int64 [datasets, 2].
        seed: Seed of the choice between goal and instruction.
        drops_history: Whether some samples have black frames before t.
        drops_state: Whether some samples have no state.
    """

    cameras: tuple[str, ...]
    shape: tuple[int, int]
    goal_prob: float | None
    proprio: bool
    names: tuple[bytes, ...] = ()
    dropped: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    seed: int = 0
    drops_history: bool = False
    drops_state: bool = False

    def bind(self, data: OpenMixture) -> ToOcto:
        """Return the conversion with the datasets of a loader; raise ArgumentError for data that do not fit."""
        check_data(data, ("action", "language"), cameras=self.cameras)
        if "num_steps" not in data.sample_spec.columns:
            raise ArgumentError(f"columns={data.sample_spec.columns!r:.100}; this trainer takes num_steps too")
        dropped = [
            dropped_steps(dataset, vector.space) if vector.space and vector.columns is None else (0, 0)
            for dataset, vector in zip(data.datasets, data.vectors["action"], strict=True)
        ]
        return replace(
            self,
            names=tuple(name.encode() for name in data.names),
            dropped=np.array(dropped, np.int64),
            seed=data.sample_spec.seed,
            drops_history=data.spec.history_dropout is not None,
            drops_state=data.spec.state_dropout is not None,
        )

    def map(self, batch: Batch) -> Batch:
        """Return the batch of Octo."""
        width, action_horizon = self.shape
        num_rows, step = len(batch["step"]), batch["step"]
        # The episode of Octo: its steps with an action, from first_step to last_step.
        first_step, num_dropped_last = self.dropped[batch["dataset"]].T
        last_step = batch["num_steps"].astype(np.int64) - 1 - num_dropped_last
        history = step[:, None] + np.arange(1 - width, 1)
        # Number of each observation in the window; the first step repeats before the episode.
        step_numbers = np.maximum(np.arange(width), (first_step - step)[:, None] + width - 1)
        images, present = self._images(batch, step_numbers, last_step)
        all_valid = np.ones((num_rows, width), bool)
        observation: Batch = {f"image_{name}": frames[:, :width] for name, frames in images.items()}
        observation["timestep"] = (np.maximum(history, first_step[:, None]) - first_step[:, None]).astype(np.int32)
        masks = {f"image_{name}": mask[:, :width] for name, mask in present.items()} | {"timestep": all_valid}
        if self.proprio:
            state, mask = (batch[key].reshape(num_rows, width, -1) for key in ("state", "state_mask"))
            filled, _ = repeat_edges(state, mask)
            observation["proprio"], masks["proprio"] = take_steps(filled, step_numbers), all_valid
            if self.drops_state:
                masks["proprio"] = all_valid & mask.any(axis=(1, 2))[:, None]
        task, goal_step = self._task(batch, images, present, first_step, last_step)
        # An action completes the task two steps after the goal.
        action_steps = history[:, :, None] + np.arange(action_horizon)
        completed = action_steps - 2 >= goal_step[:, None, None]
        is_observed = history >= first_step[:, None]
        if self.drops_history:
            is_observed = is_observed & np.any([mask[:, :width] for mask in present.values()], axis=0)
        observation |= {
            "timestep_pad_mask": is_observed,
            "pad_mask_dict": masks,
            "task_completed": completed,
        }
        # Each observation has its own chunk of the window's actions; beyond the window the last action repeats.
        action, mask = batch["action"], batch["action_mask"]
        filled, _ = repeat_edges(action, mask)
        action_numbers = np.minimum(step_numbers[:, :, None] + np.arange(action_horizon), action.shape[1] - 1)
        return {
            "observation": observation,
            "task": task,
            "action": take_steps(filled, action_numbers),
            "action_pad_mask": mask.any(axis=1)[:, None, None, :] & ~completed[..., None],
            "dataset_name": np.array([self.names[number] for number in batch["dataset"].tolist()], object),
            **delay_of(batch),
        }

    def _images(
        self, batch: Batch, step_numbers: np.ndarray, last_step: np.ndarray
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return the frames of observations and goal, and whether they are real, by camera."""
        if self.goal_prob is not None:
            # The goal is the frame after the observations. Beyond the last action it is the observation at t.
            goal_step, current = batch["frame_step"][:, -1], self.shape[0] - 1
            has_goal_at_t = (goal_step > last_step) | (goal_step == batch["step"])
            step_numbers = np.column_stack([step_numbers, np.where(has_goal_at_t, current, current + 1)])
        images, present = {}, {}
        for name in self.cameras:
            images[name] = take_steps(batch[f"frames/{name}"], step_numbers)
            present[name] = take_steps(batch[f"frames_mask/{name}"], step_numbers)
        return images, present

    def _task(
        self,
        batch: Batch,
        images: dict[str, np.ndarray],
        present: dict[str, np.ndarray],
        first_step: np.ndarray,
        last_step: np.ndarray,
    ) -> tuple[Batch, np.ndarray]:
        """Return the task of each row and the step at which it is done, int64 [b]."""
        instructions = np.array([text.encode() for text in batch["language"]], object)
        has_text = instructions != b""
        if self.goal_prob is None:
            pad_masks = {"language_instruction": has_text}
            return {"language_instruction": instructions, "pad_mask_dict": pad_masks}, last_step
        keeps_goal = (row_random(batch, seed=self.seed)[:, 0] < self.goal_prob) | ~has_text
        drawn_step = batch["frame_step"][:, -1]
        goal_step = np.where(keeps_goal, np.where(drawn_step > last_step, batch["step"], drawn_step), last_step)
        keeps_image = keeps_goal[:, None, None, None]
        task: Batch = {f"image_{name}": frames[:, -1] * keeps_image for name, frames in images.items()}
        pad_masks = {f"image_{name}": mask[:, -1] & keeps_goal for name, mask in present.items()}
        pad_masks |= {"language_instruction": has_text & ~keeps_goal, "timestep": np.ones(len(goal_step), bool)}
        task |= {"language_instruction": np.where(keeps_goal, b"", instructions).astype(object)}
        task |= {"timestep": (goal_step - first_step).astype(np.int32), "pad_mask_dict": pad_masks}
        return task, goal_step
