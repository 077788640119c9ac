"""LeRobot policies (ACT, diffusion, SmolVLA, pi0): batches of a ``DataLoader`` over a ``LeRobotDataset``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from stream.adapters.chunks import delay_of, repeat_edges
from stream.adapters.images import as_float
from stream.adapters.relative import substring_patterns, with_action
from stream.adapters.sample import (
    Conversion,
    TrainerSample,
    check_data,
    check_mapping,
    check_preset,
    conversion,
    with_known_arguments,
)
from stream.base.arguments import check_whole_number
from stream.base.errors import ArgumentError
from stream.sample.frames import Frames
from stream.sample.select import Select
from stream.sample.vector import Vector
from stream.statistics.vectors import mixture_statistics

if TYPE_CHECKING:
    from stream.batch.spec import Batch
    from stream.loader.loader import Loader
    from stream.loader.open_mixture import OpenMixture

Policy = Literal["act", "diffusion", "smolvla", "pi0", "pi05", "pi0_fast"]
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


class _Defaults(NamedTuple):
    """Settings of a policy.

    Attributes:
        n_obs_steps: Observations; None for no dimension of steps.
        chunk_size: Actions, from the first observation on.
        drop_n_last_frames: Count of the last steps of an episode that are not samples.
    """

    n_obs_steps: int | None
    chunk_size: int
    drop_n_last_frames: int = 0


DEFAULTS: dict[Policy, _Defaults] = {
    "act": _Defaults(None, 100),
    "diffusion": _Defaults(2, 16, drop_n_last_frames=7),
    "smolvla": _Defaults(1, 50),
    **dict.fromkeys(("pi0", "pi05", "pi0_fast"), _Defaults(None, 50)),
}
"""Settings in ``policies/<policy>/configuration_<policy>.py`` of LeRobot 0.4.4, and ``7427f31`` of the pi policies."""


@with_known_arguments
def sample(
    preset: Policy = "act",
    *,
    chunk_size: int | None = None,
    n_obs_steps: int | None = None,
    drop_n_last_frames: int | None = None,
    cameras: Sequence[str] | Mapping[str, str] = ("primary",),
    image_size: tuple[int, int] | None = None,
    use_relative_actions: bool = False,
    relative_exclude_joints: Sequence[str] = ("gripper",),
) -> TrainerSample:
    """Return the arguments of ``make_loader`` for a LeRobot policy's batches.

    With T observations and W actions; ACT and the pi policies have no dimension T:

    - ``observation.images.<camera>`` float32 [b, T, 3, H, W], from 0 to 1; its ``_is_pad`` bool [b, T]; and
      ``_padding_mask`` bool [b], False for a camera that the dataset lacks.
    - ``observation.state`` float32 [b, T, S], if the data have one, and ``observation.state_is_pad`` bool [b, T].
    - ``action`` float32 [b, W, A] and ``action_is_pad`` bool [b, W]: steps beyond the episode repeat its first or last.
    - ``action_delay``, ``action_prefix_mask``: as of ``make_loader``, if the action has a ``max_delay``.
    - ``task``: list of str. ``episode_index``, ``frame_index`` int64 [b]; ``timestamp`` float32 [b], seconds, NaN for a
      dataset without a fixed rate.

    Values are raw: the policy's preprocessor normalises them with ``dataset_stats(loader)``. ``features(loader)`` gives
    the policy's input and output features. ``stream.torch.to_device(loader, device)`` makes tensors of the batches.

    Sources: ``lerobot/datasets/lerobot_dataset.py``, ``policies/<policy>/configuration_<policy>.py`` and
    ``scripts/lerobot_train.py`` of LeRobot 0.4.4; ``processor/relative_action_processor.py`` and
    ``datasets/compute_stats.py`` of ``7427f31``. Not done, as the policy's preprocessor does it: the subtraction of the
    state, the normalisation and the tokens.

    Args:
        preset: Policy. Observations before t need a root of ``--layout frames``.
        chunk_size: Actions, by default 100 (ACT), 16 (``horizon`` of diffusion, which is 64 in LeRobot 0.6) or 50
            (SmolVLA).
        n_obs_steps: Observations, by default 2 for diffusion, and 1 for the others.
        drop_n_last_frames: Last steps of an episode that are not samples, by default 7 for diffusion.
        cameras: Cameras by role or name; or a mapping of keys (``observation.images.top``) to them.
        image_size: Height and width, by default the stored size.
        use_relative_actions: As in the policy's configuration. Batches keep absolute actions, as the preprocessor
            subtracts the state; ``dataset_stats`` gives the statistics of relative actions, over complete chunks.
        relative_exclude_joints: As in the policy's configuration: texts in the names of dimensions that stay absolute.
            Here also in their quantities, which ``action_feature_names`` adds to the names for the policy.

    Raises:
        ArgumentError: An argument is wrong.
    """
    check_preset(preset, DEFAULTS)
    if not isinstance(relative_exclude_joints, list | tuple):
        raise ArgumentError(f"relative_exclude_joints={relative_exclude_joints!r:.100}; expected a list of texts")
    absolute = substring_patterns(relative_exclude_joints)
    chosen = (
        ("n_obs_steps", n_obs_steps, 1),
        ("chunk_size", chunk_size, 1),
        ("drop_n_last_frames", drop_n_last_frames, 0),
    )
    numbers = {name: check_whole_number(name, value, least=least) for name, value, least in chosen if value is not None}
    settings = DEFAULTS[preset]._replace(**numbers)
    if isinstance(cameras, list | tuple):
        camera_by_key = {f"observation.images.{name}": name for name in cameras}
    else:
        camera_by_key = check_mapping("cameras", cameras, example="{'observation.images.top': 'primary'}, or a list")
    first_step = 1 - (settings.n_obs_steps or 1)
    if use_relative_actions and first_step:
        raise ArgumentError(
            f"use_relative_actions with n_obs_steps={settings.n_obs_steps}: LeRobot subtracts the state of one "
            "observation; take a preset of pi0, pi05 or pi0_fast, or n_obs_steps=1"
        )
    return TrainerSample(
        frames=Frames(
            list(range(first_step, 1)),
            cameras=list(dict.fromkeys(camera_by_key.values())),
            size=image_size,
            edges="repeat" if first_step else "drop",
        ),
        action=Vector(settings.chunk_size, start=first_step),
        state=Vector(1 - first_step, start=first_step),
        select=Select(min_future_actions=1 + settings.drop_n_last_frames),
        transforms=(
            ToLeRobot(
                camera_by_key,
                settings.n_obs_steps is not None,
                -first_step,
                absolute=absolute if use_relative_actions else None,
            ),
        ),
    )


def features(loader: Loader) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return the input and the output features of a policy: ``PolicyFeature(**feature)`` of each value.

    Args:
        loader: Loader of this sample.

    Returns:
        ``type`` (``VISUAL``, ``STATE`` or ``ACTION``) and ``shape`` by key.

    Raises:
        ArgumentError: The loader is of another trainer.
    """
    image_keys = conversion(loader, ToLeRobot).views
    spec = loader.data.spec
    shapes = {camera.suffix.removeprefix("/"): camera.shape for camera in spec.cameras}
    inputs: dict[str, dict[str, Any]] = {
        image_key: {"type": "VISUAL", "shape": (3, *shapes[camera])} for image_key, camera in image_keys.items()
    }
    if spec.state_size:
        inputs["observation.state"] = {"type": "STATE", "shape": (spec.state_size,)}
    return inputs, {"action": {"type": "ACTION", "shape": (spec.action_size,)}}


def dataset_stats(loader: Loader, *, split: str = "train") -> dict[str, dict[str, np.ndarray]]:
    """Return the ``dataset_stats`` of LeRobot's processors: of all members together, and ImageNet's of images.

    Args:
        loader: Loader of this sample.
        split: TFDS split of the statistics.

    Returns:
        ``mean``, ``std``, ``min``, ``max``, ``q01`` and ``q99`` by key, float32 [dims]; of images [3, 1, 1]. With
        ``use_relative_actions`` those of the action are of relative chunks, as ``compute_relative_action_stats`` counts
        them.

    Raises:
        ArgumentError: The members have different dimensions (load them in one space), an action cannot be relative to
            the state, or the loader is of another trainer.
    """
    to_lerobot = conversion(loader, ToLeRobot)
    image_keys, mixture = to_lerobot.views, loader.data
    lerobot_names = {"action": "action", "state": "observation.state"}
    if to_lerobot.absolute is not None:
        action = replace(mixture.sample_spec.action or Vector(), relative_to="state", absolute=to_lerobot.absolute)
        mixture = with_action(mixture, action)
    stats = mixture_statistics(mixture, split=split, tails="real" if to_lerobot.absolute is None else "complete")
    vector_stats = {lerobot_names[vector_name]: numbers for vector_name, numbers in stats.items()}
    image_stats = {statistic: np.array(values, np.float32)[:, None, None] for statistic, values in IMAGENET.items()}
    return vector_stats | dict.fromkeys(image_keys, image_stats)


def action_feature_names(loader: Loader) -> list[str]:
    """Return the names of the action for the policy's ``action_feature_names``.

    LeRobot finds the dimensions of ``relative_exclude_joints`` by name. A dimension that only its quantity excludes has
    the quantity in its name here: ``width`` of a gripper becomes ``width gripper``.

    Args:
        loader: Loader of this sample.

    Raises:
        ArgumentError: The loader is of another trainer.
    """
    patterns = conversion(loader, ToLeRobot).absolute or ()
    vector = loader.data.spec.actions[0]
    names = list(vector.names)
    for dim, quantity in enumerate(vector.quantities):
        if any(fnmatchcase(quantity, pattern) and not fnmatchcase(names[dim], pattern) for pattern in patterns):
            names[dim] += f" {quantity}"
    return names


@dataclass(frozen=True)
class ToLeRobot(Conversion):
    """Conversion of a batch.

    Attributes:
        views: Camera of each key.
        has_steps: Whether observations have a dimension of steps.
        now: Number of the frame of t.
        rates: Steps per second of each dataset.
        absolute: Patterns of the dimensions that LeRobot leaves absolute, None if all are.
        drops_history: Whether some samples have black frames before t.
    """

    takes_normalized: ClassVar[bool] = False

    views: Mapping[str, str]
    has_steps: bool
    now: int
    rates: tuple[float | None, ...] = ()
    absolute: tuple[str, ...] | None = None
    drops_history: bool = False

    def bind(self, data: OpenMixture) -> ToLeRobot:
        """Return the conversion with the rates of a loader's datasets; raise ArgumentError for data that do not fit."""
        check_data(data, ("action", "language"), cameras=[*self.views.values()])
        return replace(self, rates=data.spec.rates, drops_history=data.spec.history_dropout is not None)

    def map(self, batch: Batch) -> Batch:
        """Return the batch of LeRobot."""
        converted: Batch = {}
        beyond = batch["frame_step"] != batch["step"][:, None] + np.arange(-self.now, 1)
        for image_key, camera in self.views.items():
            images = as_float(batch[f"frames/{camera}"])
            converted[image_key] = images if self.has_steps else images[:, 0]
            converted[f"{image_key}_padding_mask"] = batch[f"frames_mask/{camera}"][:, self.now]
            if self.has_steps:
                converted[f"{image_key}_is_pad"] = beyond
                if self.drops_history:
                    # A dropped frame is black with mask False, which LeRobot calls padding.
                    converted[f"{image_key}_is_pad"] = beyond | ~batch[f"frames_mask/{camera}"]
        if "state" in batch and batch["state"].shape[-1]:
            converted["observation.state"] = batch["state"]
            if self.has_steps:
                state, mask = batch["state"], batch["state_mask"]
                if state.ndim == 2:
                    state, mask = state[:, None], mask[:, None]
                converted["observation.state"], converted["observation.state_is_pad"] = repeat_edges(state, mask)
        converted["action"], converted["action_is_pad"] = repeat_edges(batch["action"], batch["action_mask"])
        rates = np.array([rate or np.nan for rate in self.rates])[batch["dataset"]]
        converted |= {"task": batch["language"], "episode_index": batch["episode"], "frame_index": batch["step"]}
        return {**converted, "timestamp": (batch["step"] / rates).astype(np.float32), **delay_of(batch)}
