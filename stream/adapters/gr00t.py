"""GR00T N1.6: the fields of its ``VLAStepData``, which its processor takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stream.adapters.opening import SIZE, check_mapping, conversion, open_loader
from stream.base.arguments import check_whole_number
from stream.base.errors import ArgumentError, closest
from stream.statistics.vectors import mixture_statistics

if TYPE_CHECKING:
    from stream.batch.spec import Batch
    from stream.loader.loader import Loader

Keys = Mapping[str, Sequence[str]]


def loader(
    root: str | Path,
    mixture: Any,
    *,
    action_horizon: int = 16,
    views: Mapping[str, str] | None = None,
    frames: Sequence[int] = (0,),
    state_keys: Keys | None = None,
    action_keys: Keys | None = None,
    **arguments: Any,
) -> Loader:
    """Return a loader of the fields of GR00T's ``VLAStepData``; ``steps(batch)`` gives them row by row.

    - ``images``: dict of uint8 [b, T, H, W, 3] by view, in the stored size, or in ``image_size``.
    - ``states``: dict of float32 [b, 1, D] by key. ``actions``: dict of float32 [b, action_horizon, D] by key. Raw.
    - ``text``: list of str.

    Each chunk is complete: the last ``action_horizon - 1`` steps of an episode are not samples, as in GR00T.

    Sources: ``gr00t/data/types.py`` and ``gr00t/data/dataset/sharded_single_step_dataset.py``. Not done: the processor,
    with normalisation (by ``statistics``), image size and tokenizer; and the embodiment tag, an argument of
    ``VLAStepData``.

    Args:
        root: As for ``make_loader``.
        mixture: As for ``make_loader``. All members need the same dimensions.
        action_horizon: Actions of a chunk.
        views: Camera of each view, by role or name; by default the primary camera.
        frames: Steps of the images, from t. Steps before t need ``--layout frames``.
        state_keys: Dimensions of each key, by their names in ``loader.state_names``; by default one key, ``state``.
        action_keys: The same for actions; by default one key, ``action``.
        arguments: Other arguments of ``make_loader``, such as ``batch_size`` and ``transforms``.

    Raises:
        ArgumentError: As for ``make_loader``; the members have different dimensions, or a key names an unknown one.
    """
    if not isinstance(frames, list | tuple | range):
        raise ArgumentError(f"frames={frames!r:.100}; expected a list of steps from t, such as [-1, 0]")
    action_horizon = check_whole_number("action_horizon", action_horizon, least=1)
    views = check_mapping("views", views or {"primary": "primary"}, example="{'front': 'primary'}")

    def convert(opened: Any) -> ToGr00t:
        states = _dims(opened, "state", state_keys)
        return ToGr00t(views, states, _dims(opened, "action", action_keys))

    preset = {
        "cameras": list(dict.fromkeys(views.values())),
        "frames": list(frames),
        "horizon": action_horizon,
        "min_actions": action_horizon,
    }
    return open_loader(
        root,
        mixture,
        adapter=loader,
        convert=convert,
        preset=preset,
        free=("bounds", "state_from", "state_horizon", *SIZE),
        needs=("action", "state"),
        arguments=arguments,
    )


def steps(batch: Batch) -> list[dict[str, Any]]:
    """Return the arguments of ``VLAStepData`` for each row; images of a view are a list of uint8 [H, W, 3]."""
    return [
        {
            "images": {name: list(frames[row]) for name, frames in batch["images"].items()},
            "states": {name: values[row] for name, values in batch["states"].items()},
            "actions": {name: values[row] for name, values in batch["actions"].items()},
            "text": text,
        }
        for row, text in enumerate(batch["text"])
    ]


def statistics(loader: Loader, *, split: str = "train") -> dict[str, dict[str, dict[str, list[float]]]]:
    """Return the statistics of one embodiment for GR00T's ``StateActionProcessor``, of all members together.

    Args:
        loader: Loader of this module.
        split: TFDS split of the statistics.

    Returns:
        ``mean``, ``std``, ``min``, ``max``, ``q01`` and ``q99`` of each key, of ``state`` and ``action``.

    Raises:
        ArgumentError: The loader is of another module.
    """
    to_gr00t = conversion(loader, ToGr00t)
    dims_by_vector = {"state": to_gr00t.states, "action": to_gr00t.actions}
    result: dict[str, dict[str, dict[str, list[float]]]] = {}
    for vector_name, numbers in mixture_statistics(loader.data, split=split).items():
        result[vector_name] = {}
        for key, dims in dims_by_vector[vector_name].items():
            result[vector_name][key] = {statistic: values[dims].tolist() for statistic, values in numbers.items()}
    return result


@dataclass(frozen=True)
class ToGr00t:
    """Conversion of a batch.

    Attributes:
        views: Camera of each view.
        states, actions: Numbers of the dimensions of each key.
    """

    views: Mapping[str, str]
    states: Mapping[str, list[int]]
    actions: Mapping[str, list[int]]

    def map(self, batch: Batch) -> Batch:
        """Return the batch of GR00T."""
        state: np.ndarray = batch["state"] if batch["state"].ndim == 3 else batch["state"][:, None]
        return {
            "images": {name: batch[f"frames/{camera}"] for name, camera in self.views.items()},
            "states": {name: state[..., dims] for name, dims in self.states.items()},
            "actions": {name: batch["action"][..., dims] for name, dims in self.actions.items()},
            "text": batch["language"],
        }


def _dims(mixture: Any, vector_name: Any, dims_by_key: Keys | None) -> dict[str, list[int]]:
    """Return the numbers of the dimensions of each key."""
    vectors = mixture.spec.vectors(vector_name)
    for dataset_name, vector in zip(mixture.names, vectors, strict=True):
        if vector.names != vectors[0].names:
            raise ArgumentError(
                f"{vector_name} of {dataset_name} is {', '.join(vector.names)}, that of {mixture.names[0]} is "
                f"{', '.join(vectors[0].names)}; take one {vector_name}_space, or load them separately"
            )
    dim_names = list(vectors[0].names)
    chosen_dims = {vector_name: dim_names} if dims_by_key is None and dim_names else dict(dims_by_key or {})
    numbers: dict[str, list[int]] = {}
    for dims_key, key_names in chosen_dims.items():
        for name in key_names:
            if name not in dim_names:
                available = closest(name, dim_names, noun="dimensions")
                raise ArgumentError(f"{vector_name}_keys: no dimension {name!r}; {available}")
        numbers[dims_key] = [dim_names.index(name) for name in key_names]
    return numbers
