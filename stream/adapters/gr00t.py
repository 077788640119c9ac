"""GR00T N1.6: the fields of its ``VLAStepData``, which its processor takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np

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
from stream.base.errors import ArgumentError, closest
from stream.order.frames import Frames
from stream.order.select import Select
from stream.order.vector import Vector
from stream.statistics.vectors import mixture_statistics

if TYPE_CHECKING:
    from stream.batch.spec import Batch
    from stream.loader.loader import Loader
    from stream.loader.open_mixture import OpenMixture

Preset = Literal["gr00t_n1d6"]
Keys = Mapping[str, Sequence[str]]


@with_known_arguments
def sample(
    preset: Preset = "gr00t_n1d6",
    *,
    action_horizon: int = 16,
    views: Mapping[str, str] | None = None,
    frames: Sequence[int] = (0,),
    state_keys: Keys | None = None,
    action_keys: Keys | None = None,
) -> TrainerSample:
    """Return the arguments of ``make_loader`` for GR00T's ``VLAStepData``; ``steps(batch)`` gives them row by row.

    - ``images``: dict of uint8 [b, T, H, W, 3] by view, in the stored size.
    - ``states``: dict of float32 [b, 1, D] by key. ``actions``: dict of float32 [b, action_horizon, D] by key. Raw.
    - ``text``: list of str.

    Each chunk is complete: the last ``action_horizon - 1`` steps of an episode are not samples, as in GR00T. All
    members need the same dimensions.

    Sources: ``gr00t/data/types.py`` and ``gr00t/data/dataset/sharded_single_step_dataset.py``. Not done: the processor,
    with normalisation (by ``statistics``), image size and tokenizer; and the embodiment tag, an argument of
    ``VLAStepData``.

    Args:
        preset: ``gr00t_n1d6``.
        action_horizon: Actions of a chunk.
        views: Camera of each view, by role or name; by default the primary camera.
        frames: Steps of the images, from t. Steps before t need ``--layout frames``.
        state_keys: Dimensions of each key, by their names in ``loader.state_names``; by default one key, ``state``.
        action_keys: The same for actions; by default one key, ``action``.

    Raises:
        ArgumentError: An argument is wrong. ``make_loader`` raises it if members have different dimensions, or a key
            names an unknown one.
    """
    check_preset(preset, get_args(Preset))
    if not isinstance(frames, list | tuple | range):
        raise ArgumentError(f"frames={frames!r:.100}; expected a list of steps from t, such as [-1, 0]")
    action_horizon = check_whole_number("action_horizon", action_horizon, least=1)
    views = check_mapping("views", {"primary": "primary"} if views is None else views, example="{'front': 'primary'}")
    return TrainerSample(
        frames=Frames(list(frames), cameras=list(dict.fromkeys(views.values()))),
        action=Vector(action_horizon),
        select=Select(min_future_actions=action_horizon),
        transforms=(ToGr00t(views, state_keys, action_keys),),
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
        loader: Loader of this sample.
        split: TFDS split of the statistics.

    Returns:
        ``mean``, ``std``, ``min``, ``max``, ``q01`` and ``q99`` of each key, of ``state`` and ``action``.

    Raises:
        ArgumentError: The loader is of another trainer.
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
class ToGr00t(Conversion):
    """Conversion of a batch.

    Attributes:
        views: Camera of each view.
        state_keys, action_keys: Names of the dimensions of each key, None for one key.
        states, actions: Numbers of the dimensions of each key.
    """

    takes_normalized: ClassVar[bool] = False

    views: Mapping[str, str]
    state_keys: Keys | None = None
    action_keys: Keys | None = None
    states: Mapping[str, list[int]] = field(default_factory=dict)
    actions: Mapping[str, list[int]] = field(default_factory=dict)

    def bind(self, data: OpenMixture) -> ToGr00t:
        """Return the conversion with the dimensions of a loader; raise ArgumentError for data that do not fit."""
        check_data(data, ("action", "state", "language"), cameras=[*self.views.values()])
        states, actions = _dims(data, "state", self.state_keys), _dims(data, "action", self.action_keys)
        return replace(self, states=states, actions=actions)

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
                f"{', '.join(vectors[0].names)}; take one space, or load them separately"
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
