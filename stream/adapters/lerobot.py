"""LeRobot policies (ACT, diffusion, SmolVLA): batches of a ``DataLoader`` over a ``LeRobotDataset``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from stream.adapters.chunks import repeat_edges
from stream.adapters.images import as_float
from stream.adapters.opening import SIZE, check_mapping, conversion, open_loader
from stream.base.arguments import check_whole_number
from stream.base.errors import ArgumentError
from stream.statistics.vectors import mixture_statistics

if TYPE_CHECKING:
    from stream.batch.spec import Batch
    from stream.loader.loader import Loader

Policy = Literal["act", "diffusion", "smolvla"]
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


@dataclass(frozen=True)
class Window:
    """Steps that a policy takes.

    Attributes:
        history: Count of observations; None has no dimension of steps.
        actions: Count of actions, from the first observation on.
        drop_last: Count of the last steps of an episode that are not samples.
    """

    history: int | None
    actions: int
    drop_last: int = 0

    def __post_init__(self) -> None:
        if self.history is not None:
            check_whole_number("history", self.history, least=1)
        check_whole_number("actions", self.actions, least=1)
        check_whole_number("drop_last", self.drop_last, least=0)


WINDOWS: dict[Policy, Window] = {
    "act": Window(None, 100),
    "diffusion": Window(2, 16, drop_last=7),
    "smolvla": Window(1, 50),
}


def loader(
    root: str | Path,
    mixture: Any,
    *,
    policy: Policy | Window = "act",
    cameras: Sequence[str] | Mapping[str, str] = ("primary",),
    **arguments: Any,
) -> Loader:
    """Return a loader of a LeRobot policy's batches; ``stream.torch.to_device(loader, device)`` makes tensors of them.

    With T observations and W actions; ACT has no dimension T:

    - ``observation.images.<camera>`` float32 [b, T, 3, H, W], from 0 to 1, in the stored size, or in ``image_size``;
      its ``_is_pad`` bool [b, T]; and ``_padding_mask`` bool [b], False for a camera that the dataset lacks.
    - ``observation.state`` float32 [b, T, S], if the data have one, and ``observation.state_is_pad`` bool [b, T].
    - ``action`` float32 [b, W, A] and ``action_is_pad`` bool [b, W]: steps beyond the episode repeat its first or last.
    - ``task``: list of str. ``episode_index``, ``frame_index`` int64 [b]; ``timestamp`` float32 [b], seconds, NaN for a
      dataset without a fixed rate.

    Values are raw: the policy's preprocessor normalises them with ``dataset_stats(loader)``.

    Sources: ``lerobot/datasets/lerobot_dataset.py``, ``policies/<policy>/configuration_<policy>.py`` and
    ``scripts/lerobot_train.py`` of LeRobot 0.4.4. Not done: the policy's preprocessor, with its tokenizer.

    Args:
        root: As for ``make_loader``. Observations before t need ``--layout frames``.
        mixture: As for ``make_loader``.
        policy: Policy with its default window, or a window: ``Window(history, actions, drop_last)``.
        cameras: Cameras by role or name; or a mapping of keys (``observation.images.top``) to them.
        arguments: Other arguments of ``make_loader``, such as ``batch_size`` and ``transforms``.

    Raises:
        ArgumentError: As for ``make_loader``; or the policy is unknown.
    """
    if not isinstance(policy, Window) and (not isinstance(policy, str) or policy not in WINDOWS):
        raise ArgumentError(f"policy={policy!r}; expected {', '.join(WINDOWS)}, or a Window(history, actions)")
    window = policy if isinstance(policy, Window) else WINDOWS[policy]
    if isinstance(cameras, list | tuple):
        camera_by_key = {f"observation.images.{name}": name for name in cameras}
    else:
        camera_by_key = check_mapping("cameras", cameras, example="{'observation.images.top': 'primary'}, or a list")
    first_step = 1 - (window.history or 1)
    preset = {
        "cameras": list(dict.fromkeys(camera_by_key.values())),
        "frames": list(range(first_step, 1)),
        "bounds": "clamp" if first_step else "inside",
        "action_from": first_step,
        "horizon": window.actions,
        "min_actions": 1 + window.drop_last,
        "state_from": first_step,
        "state_horizon": 1 - first_step,
    }
    return open_loader(
        root,
        mixture,
        adapter=loader,
        convert=lambda opened: ToLeRobot(camera_by_key, window.history is not None, -first_step, opened.spec.rates),
        preset=preset,
        free=SIZE,
        arguments=arguments,
    )


def dataset_stats(loader: Loader, *, split: str = "train") -> dict[str, dict[str, np.ndarray]]:
    """Return the ``dataset_stats`` of LeRobot's processors: of all members together, and ImageNet's of images.

    Args:
        loader: Loader of this module.
        split: TFDS split of the statistics.

    Returns:
        ``mean``, ``std``, ``min``, ``max``, ``q01`` and ``q99`` by key, float32 [dims]; of images [3, 1, 1].

    Raises:
        ArgumentError: The members have different dimensions (load them in one space), or the loader is of another
            module.
    """
    image_keys = conversion(loader, ToLeRobot).views
    lerobot_names = {"action": "action", "state": "observation.state"}
    stats = mixture_statistics(loader.data, split=split)
    vector_stats = {lerobot_names[vector_name]: numbers for vector_name, numbers in stats.items()}
    image_stats = {statistic: np.array(values, np.float32)[:, None, None] for statistic, values in IMAGENET.items()}
    return vector_stats | dict.fromkeys(image_keys, image_stats)


@dataclass(frozen=True)
class ToLeRobot:
    """Conversion of a batch.

    Attributes:
        views: Camera of each key.
        has_steps: Whether observations have a dimension of steps.
        now: Number of the frame of t.
        rates: Steps per second of each dataset.
    """

    views: Mapping[str, str]
    has_steps: bool
    now: int
    rates: tuple[float | None, ...]

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
        if batch["state"].shape[-1]:
            converted["observation.state"] = batch["state"]
            if self.has_steps:
                state, mask = batch["state"], batch["state_mask"]
                if state.ndim == 2:
                    state, mask = state[:, None], mask[:, None]
                converted["observation.state"], converted["observation.state_is_pad"] = repeat_edges(state, mask)
        converted["action"], converted["action_is_pad"] = repeat_edges(batch["action"], batch["action_mask"])
        rates = np.array([rate or np.nan for rate in self.rates])[batch["dataset"]]
        converted |= {"task": batch["language"], "episode_index": batch["episode"], "frame_index": batch["step"]}
        return {**converted, "timestamp": (batch["step"] / rates).astype(np.float32)}
