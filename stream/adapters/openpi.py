"""openpi (pi0, pi0.5, pi0-FAST): batches for ``Observation.from_dict``, as its ``transform_dataset`` makes them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from stream.adapters.aloha import AdaptToPi
from stream.adapters.chunks import check_dims, check_equal_dims, delay_of, pad_dims, repeat_edges
from stream.adapters.sample import (
    Conversion,
    TrainerSample,
    check_data,
    check_mapping,
    check_preset,
    with_known_arguments,
)
from stream.base.arguments import check_whole_number
from stream.base.errors import ArgumentError
from stream.sample.frames import Frames, check_size
from stream.sample.select import Select
from stream.sample.vector import Vector
from stream.statistics.deferred import choose_normalize

if TYPE_CHECKING:
    from stream.batch.spec import Batch
    from stream.loader.open_mixture import OpenMixture
    from stream.statistics.normalize import Normalize

Model = Literal["pi0", "pi05", "pi0_fast"]
Preset = Literal["pi0", "pi05", "pi0_fast", "pi0_droid", "pi05_droid", "pi0_fast_droid"]
CAMERAS: dict[Model, dict[str, str | None]] = {
    "pi0": {"base_0_rgb": "primary", "left_wrist_0_rgb": "wrist", "right_wrist_0_rgb": None},
    "pi05": {"base_0_rgb": "primary", "left_wrist_0_rgb": "wrist", "right_wrist_0_rgb": None},
    "pi0_fast": {"base_0_rgb": "primary", "base_1_rgb": None, "wrist_0_rgb": "wrist"},
}
"""Camera of each image of a model, as in openpi's ``policies/droid_policy.py``; None is a black image."""


DROID_EXTERIOR = ("exterior_image_1_left", "exterior_image_2_left")
DROID_WRIST = "wrist_image_left"
DROID_TEXTS = ("language_instruction", "language_instruction_2", "language_instruction_3")
"""Cameras and instructions that openpi's ``training/droid_rlds_dataset.py`` draws from."""
DROID_COLUMNS = (
    ["action_dict/joint_position", "action_dict/gripper_position"],
    ["observation/joint_position", "observation/gripper_position"],
)
"""Columns of its action and its state."""
DROID_SUCCESS = [("episode_metadata/file_path", "contains", "success")]
"""Condition of its episodes."""


@with_known_arguments
def sample(
    preset: Preset = "pi0",
    *,
    action_horizon: int | None = None,
    action_dim: int = 32,
    image_size: tuple[int, int] = (224, 224),
    cameras: Mapping[str, str | Sequence[str] | None] | None = None,
    use_delta_joint_actions: bool = False,
    adapt_to_pi: bool = False,
    normalize: bool | str | Path | Normalize = True,
    tokenizer: Any = None,
) -> TrainerSample:
    """Return the arguments of ``make_loader`` for openpi's batches.

    - ``image``: dict of uint8 [b, 224, 224, 3], resized bilinearly with black borders.
    - ``image_mask``: dict of bool [b], False for a camera that the dataset lacks; for pi0-FAST always True.
    - ``state`` float32 [b, action_dim] and ``actions`` float32 [b, action_horizon, action_dim], normalised, then padded
      with zeros; without padding for pi0-FAST. Steps beyond the episode repeat the last action.
    - ``action_delay``, ``action_prefix_mask``: as of ``make_loader``, if the action has a ``max_delay``.
    - ``prompt``: list of str; with a tokenizer ``tokenized_prompt`` int32 [b, L] and ``tokenized_prompt_mask`` bool
      [b, L] instead, and for pi0-FAST ``token_ar_mask`` int32 [b, L] and ``token_loss_mask`` bool [b, L].

    All members need the same dimensions; several robots need a space, such as
    ``replace(sample.action, space="eef_delta")`` and ``replace(sample.state, space="eef")``.

    The presets of DROID (``pi05_droid``) give its samples as openpi's ``DroidRldsDataset`` does, from a root of
    ``--layout frames --cameras all``. One of the two exterior cameras and one of the three instructions are drawn for
    each sample. Actions and state are joint positions and the gripper as stored. Episodes without ``success`` in their
    path are left out. openpi draws once for each pass of an episode, and draws an empty instruction as often as the
    others; here only samples without any instruction have an empty one. Give openpi's file of idle steps as
    ``replace(sample.select, keep_ranges=path)``.

    Sources: ``src/openpi/models/model.py`` (keys), ``training/config.py`` and ``transforms.py`` (order of transforms),
    ``training/droid_rlds_dataset.py`` (tails), ``scripts/compute_norm_stats.py``. Not done: augmentation, which
    openpi's model does on the device.

    Args:
        preset: Model, or model and ``_droid``. pi0 is normalised by mean and standard deviation, the others by the
            quantiles 0.01 and 0.99; as in openpi, in all dimensions. A constant dimension is 0 in pi0, and -1 in the
            others.
        action_horizon: Actions of a chunk, by default 50, or 16 for DROID.
        action_dim: Dimensions of the model.
        image_size: Height and width.
        cameras: Camera of each image, by role or name; several to draw one from; or None for a black image. By default
            ``CAMERAS``, black where no dataset stores the camera.
        use_delta_joint_actions: Whether actions are relative to the state, as ``DeltaActions`` makes them: joints and
            positions are subtracted, grippers stay.
            ``loader.normalize.denormalize(actions, dataset=..., state=...)`` gives commands.
        adapt_to_pi: Whether action and state are those of ALOHA, of 14 dimensions, and get the signs and grippers of
            the pi models, as in ``LeRobotAlohaDataConfig``. On the robot, give
            ``state=aloha.adapt_state(state)`` to ``denormalize``, and its result to ``aloha.restore_actions``.
        normalize: True takes statistics of all members together, by their weights. Those of actions are of all chunks
            with repeated tails, as openpi counts them. Give the path of a ``norm_stats.json``, a ``stream.Normalize``,
            or False for raw values.
        tokenizer: An object with openpi's ``tokenize(prompt, state)``, such as its ``PaligemmaTokenizer``; for pi0-FAST
            with its ``tokenize(prompt, state, actions)``, such as ``stream.adapters.pi0_fast.FastTokenizer``.

    Raises:
        ArgumentError: An argument is wrong. ``make_loader`` raises it if a vector has more dimensions than the model.
    """
    check_preset(preset, get_args(Preset))
    is_droid = preset.endswith("_droid")
    model: Any = preset.removesuffix("_droid")
    if tokenizer is not None:
        _check_tokenizer(tokenizer, model)
    default_horizon = 16 if is_droid else 50
    action_horizon = default_horizon if action_horizon is None else action_horizon
    action_horizon = check_whole_number("action_horizon", action_horizon, least=1)
    action_dim = check_whole_number("action_dim", action_dim, least=1)
    camera_by_image: dict[str, Any] = dict(CAMERAS[model])
    if is_droid:
        droid_cameras = {"primary": DROID_EXTERIOR, "wrist": DROID_WRIST}
        camera_by_image = {name: role and droid_cameras[role] for name, role in camera_by_image.items()}
    if cameras is not None:
        example = "{'base_0_rgb': 'primary', 'left_wrist_0_rgb': None}"
        camera_by_image = check_mapping("cameras", cameras, example=example)
    shape = check_size("image_size", image_size)
    action_columns, state_columns = DROID_COLUMNS if is_droid else (None, None)
    action = Vector(action_horizon, columns=action_columns)
    if use_delta_joint_actions:
        action = replace(action, relative_to="state")
    method = "openpi_pi0" if model == "pi0" else "openpi_pi05"
    settings: dict[str, Any] = {"method": method, "per": "mixture", "tails": "repeat"}
    adapts: tuple[AdaptToPi, ...] = ()
    if adapt_to_pi:
        # Statistics after a transform are of what the batch holds, so it holds the repeated tails.
        action, adapts = replace(action, edges="repeat"), (AdaptToPi(),)
        settings |= {"statistics": "transformed", "transforms": adapts}
    return TrainerSample(
        frames=Frames(
            [0],
            cameras={name: camera for name, camera in camera_by_image.items() if camera},
            size=shape,
            fit="pad",
            filter="bilinear",
            on_missing_camera="error" if cameras or is_droid else "mask",
        ),
        action=action,
        state=Vector(columns=state_columns),
        language=DROID_TEXTS if is_droid else "language",
        select=Select(where=DROID_SUCCESS) if is_droid else Select(),
        transforms=(
            *adapts,
            *choose_normalize(normalize, settings),
            ToOpenpi(tuple(camera_by_image), shape, action_dim, model != "pi0_fast", model == "pi05", tokenizer),
        ),
    )


@dataclass(frozen=True, eq=False)
class ToOpenpi(Conversion):
    """Conversion of a batch.

    Attributes:
        views: Names of the images.
        image_size: Height and width.
        dims: Dimensions of the model.
        pads: Whether vectors are padded to them and images are masked; pi0-FAST has neither.
        tokenizes_state: Whether the tokenizer takes the state, as pi0.5 has it.
        tokenizer: Tokenizer, or None.
    """

    views: tuple[str, ...]
    image_size: tuple[int, int]
    dims: int
    pads: bool
    tokenizes_state: bool
    tokenizer: Any = field(default=None, repr=False)

    def bind(self, data: OpenMixture) -> ToOpenpi:
        """Check that the data of a loader fit the model; raise ArgumentError if they do not."""
        loaded = [name for name in self.views if f"frames/{name}" in [camera.frames for camera in data.cameras]]
        check_data(data, ("action", "state", "language"), cameras=loaded or self.views, takes_slots=True)
        check_dims(data, self.dims)
        if self.tokenizer is not None and not self.pads:
            check_equal_dims(data)
        return self

    def map(self, batch: Batch) -> Batch:
        """Return the batch of openpi."""
        rows = len(batch["step"])
        black_image = np.zeros((rows, *self.image_size, 3), np.uint8)
        never_valid = np.zeros(rows, bool)
        images, masks = dict.fromkeys(self.views, black_image), dict.fromkeys(self.views, never_valid)
        for image_name in self.views:
            if (frames := batch.get(f"frames/{image_name}")) is not None:
                images[image_name], masks[image_name] = frames[:, 0], batch[f"frames_mask/{image_name}"][:, 0]
        if not self.pads:
            masks = dict.fromkeys(masks, ~never_valid)
        actions, _ = repeat_edges(batch["action"], batch["action_mask"])
        state = batch["state"]
        prompts = self._prompts(batch["language"], state, actions)
        if self.pads:
            state, actions = pad_dims(state, self.dims), pad_dims(actions, self.dims)
        converted = {"image": images, "image_mask": masks, "state": state, "actions": actions, **prompts}
        return converted | delay_of(batch)

    def _prompts(self, texts: list[str], state: np.ndarray, actions: np.ndarray) -> Batch:
        if self.tokenizer is None:
            return {"prompt": texts}
        if not self.pads:
            rows = zip(*map(self.tokenizer.tokenize, texts, state, actions), strict=True)
            tokens, masks, is_causal, has_loss = map(np.stack, rows)
            more = {"token_ar_mask": is_causal.astype(np.int32), "token_loss_mask": has_loss > 0}
        else:
            states_or_none = list(state) if self.tokenizes_state else [None] * len(texts)
            tokens, masks = map(np.stack, zip(*map(self.tokenizer.tokenize, texts, states_or_none), strict=True))
            more = {}
        return {"tokenized_prompt": tokens.astype(np.int32), "tokenized_prompt_mask": masks > 0, **more}


def _check_tokenizer(tokenizer: Any, model: Model) -> None:
    """Raise ArgumentError if an object does not tokenise what a model takes."""
    arguments = ("prompt", "state", "actions") if model == "pi0_fast" else ("prompt", "state")
    try:
        inspect.signature(tokenizer.tokenize).bind(*arguments)
    except (AttributeError, TypeError):
        example = "stream.adapters.pi0_fast.FastTokenizer" if model == "pi0_fast" else "openpi's PaligemmaTokenizer"
        raise ArgumentError(
            f"tokenizer={tokenizer!r:.100}; {model} takes an object with tokenize({', '.join(arguments)}), such as "
            f"{example}"
        ) from None
