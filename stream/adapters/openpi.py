"""openpi (pi0, pi0.5, pi0-FAST): batches for ``Observation.from_dict``, as its ``transform_dataset`` makes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from stream.adapters.chunks import check_dims, pad_dims, repeat_edges
from stream.adapters.opening import check_mapping, open_loader
from stream.base.arguments import check_whole_number
from stream.base.errors import ArgumentError

if TYPE_CHECKING:
    from stream.batch.spec import Batch
    from stream.loader.loader import Loader
    from stream.statistics.normalize import Normalize

Model = Literal["pi0", "pi05", "pi0_fast"]
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


def loader(
    root: str | Path,
    mixture: Any,
    *,
    model: Model = "pi0",
    action_horizon: int = 50,
    action_dim: int = 32,
    image_size: tuple[int, int] = (224, 224),
    cameras: Mapping[str, str | Sequence[str] | None] | None = None,
    normalize: bool | str | Path | Normalize = True,
    tokenizer: Any = None,
    **arguments: Any,
) -> Loader:
    """Return a loader of openpi's batches.

    - ``image``: dict of uint8 [b, 224, 224, 3], resized bilinearly with black borders.
    - ``image_mask``: dict of bool [b], False for a camera that the dataset lacks; for pi0-FAST always True.
    - ``state`` float32 [b, action_dim] and ``actions`` float32 [b, action_horizon, action_dim], normalised, then padded
      with zeros; without padding for pi0-FAST. Steps beyond the episode repeat the last action.
    - ``prompt``: list of str; with a tokenizer ``tokenized_prompt`` int32 [b, L] and ``tokenized_prompt_mask`` bool
      [b, L] instead.

    Sources: ``src/openpi/models/model.py`` (keys), ``training/config.py`` and ``transforms.py`` (order of transforms),
    ``training/droid_rlds_dataset.py`` (tails). Not done: delta actions (take ``action_space="eef_delta"``), pi0-FAST's
    action tokens, and the model's own augmentation.

    Args:
        root: As for ``make_loader``.
        mixture: As for ``make_loader``. All members need the same dimensions; several robots need an ``action_space``.
        model: pi0 is normalised by mean and standard deviation, the others by the quantiles 0.01 and 0.99; as in
            openpi, in all dimensions. A constant dimension is 0 in pi0, and -1 in the others.
        action_horizon: Actions of a chunk.
        action_dim: Dimensions of the model.
        image_size: Height and width.
        cameras: Camera of each image, by role or name; several to draw one from; or None for a black image. By default
            ``CAMERAS``, black where no dataset stores the camera.
        normalize: True takes statistics of all members together, by their weights. Give the path of a
            ``norm_stats.json``, a ``stream.Normalize``, or False for raw values.
        tokenizer: An object with openpi's ``tokenize(prompt, state)``, such as its ``PaligemmaTokenizer``.
        arguments: Other arguments of ``make_loader``, such as ``batch_size`` and ``transforms``.

    Raises:
        ArgumentError: As for ``make_loader``; or a vector has more dimensions than the model.
    """
    if not isinstance(model, str) or model not in CAMERAS:
        raise ArgumentError(f"model={model!r}; expected one of {', '.join(CAMERAS)}")
    if tokenizer is not None and model == "pi0_fast":
        raise ArgumentError(
            "tokenizer: pi0_fast tokenises actions too; take the prompt, and openpi's TokenizeFASTInputs"
        )
    action_horizon = check_whole_number("action_horizon", action_horizon, least=1)
    action_dim = check_whole_number("action_dim", action_dim, least=1)
    camera_by_image = dict(CAMERAS[model])
    if cameras is not None:
        camera_by_image = check_mapping(
            "cameras", cameras, example="{'base_0_rgb': 'primary', 'left_wrist_0_rgb': None}"
        )
    chosen_cameras = {name: camera for name, camera in camera_by_image.items() if camera}

    def convert(opened: Any) -> ToOpenpi:
        check_dims(opened, action_dim)
        dims = None if model == "pi0_fast" else action_dim
        return ToOpenpi(tuple(camera_by_image), opened.cameras[0].shape, dims, model == "pi05", tokenizer)

    method = "openpi_pi0" if model == "pi0" else "openpi_pi05"
    preset = {
        "frames": [0],
        "cameras": chosen_cameras,
        "image_size": image_size,
        "image_fit": "pad",
        "image_filter": "bilinear",
        "horizon": action_horizon,
    }
    return open_loader(
        root,
        mixture,
        adapter=loader,
        convert=convert,
        normalize=normalize,
        settings={"method": method, "per": "mixture"},
        optional=() if cameras else tuple(chosen_cameras),
        preset=preset,
        needs=("action", "state"),
        arguments=arguments,
    )


def droid_loader(
    root: str | Path, dataset: str = "droid", *, model: Model = "pi05", action_horizon: int = 16, **arguments: Any
) -> Loader:
    """Return a loader of DROID as openpi's ``DroidRldsDataset`` gives it, then its ``transform_dataset``.

    One of the two exterior cameras and one of the three instructions are drawn for each sample. Actions and state are
    joint positions and the gripper as stored. Episodes without ``success`` in their path are left out.

    openpi draws once for each pass of an episode, and draws an empty instruction as often as the others. This loader
    has an empty instruction only for samples without any. Give openpi's file of idle steps as
    ``keep_ranges={"droid": path}``.

    Args:
        root: As for ``make_loader``, of ``--layout frames --cameras all``.
        dataset: Name of the dataset below the root.
        model: As for ``loader``.
        action_horizon: As for ``loader``.
        arguments: Other arguments of ``loader``, such as ``batch_size`` and ``keep_ranges``.

    Raises:
        ArgumentError: As for ``loader``.
    """
    if not isinstance(model, str) or model not in CAMERAS:
        raise ArgumentError(f"model={model!r}; expected one of {', '.join(CAMERAS)}")
    cameras_by_role = {"primary": DROID_EXTERIOR, "wrist": DROID_WRIST}
    preset = {
        "cameras": {image_name: cameras_by_role[role] if role else None for image_name, role in CAMERAS[model].items()},
        "language": DROID_TEXTS,
        "action_columns": {dataset: ["action_dict/joint_position", "action_dict/gripper_position"]},
        "state_columns": {dataset: ["observation/joint_position", "observation/gripper_position"]},
        "filters": {dataset: [("episode_metadata/file_path", "contains", "success")]},
    }
    return loader(root, dataset, model=model, action_horizon=action_horizon, **{**preset, **arguments})


@dataclass(frozen=True, eq=False)
class ToOpenpi:
    """Conversion of a batch.

    Attributes:
        views: Names of the images.
        image_size: Height and width.
        dims: Dimensions to pad to, None for no padding and images that are never masked, as pi0-FAST has it.
        tokenizes_state: Whether the tokenizer takes the state, as pi0.5 has it.
        tokenizer: Tokenizer, or None.
    """

    views: tuple[str, ...]
    image_size: tuple[int, int]
    dims: int | None
    tokenizes_state: bool
    tokenizer: Any = field(default=None, repr=False)

    def map(self, batch: Batch) -> Batch:
        """Return the batch of openpi."""
        rows = len(batch["step"])
        black_image = np.zeros((rows, *self.image_size, 3), np.uint8)
        never_valid = np.zeros(rows, bool)
        images, masks = dict.fromkeys(self.views, black_image), dict.fromkeys(self.views, never_valid)
        for image_name in self.views:
            if (frames := batch.get(f"frames/{image_name}")) is not None:
                images[image_name], masks[image_name] = frames[:, 0], batch[f"frames_mask/{image_name}"][:, 0]
        if self.dims is None:
            masks = dict.fromkeys(masks, ~never_valid)
        actions, _ = repeat_edges(batch["action"], batch["action_mask"])
        state = batch["state"]
        prompts = self._prompts(batch["language"], state)
        if self.dims is not None:
            state, actions = pad_dims(state, self.dims), pad_dims(actions, self.dims)
        return {"image": images, "image_mask": masks, "state": state, "actions": actions, **prompts}

    def _prompts(self, texts: list[str], state: np.ndarray) -> Batch:
        if self.tokenizer is None:
            return {"prompt": texts}
        states_or_none = list(state) if self.tokenizes_state else [None] * len(texts)
        tokens, masks = zip(*map(self.tokenizer.tokenize, texts, states_or_none), strict=True)
        return {"tokenized_prompt": np.stack(tokens).astype(np.int32), "tokenized_prompt_mask": np.stack(masks) > 0}
