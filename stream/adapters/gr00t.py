"""GR00T N1.6 and N1.7: the fields of its ``VLAStepData``, which its processor takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from glob import escape
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np

from stream.adapters.chunks import delay_of
from stream.adapters.relative import with_action
from stream.adapters.sample import (
    Conversion,
    TrainerSample,
    check_data,
    check_mapping,
    check_preset,
    conversion,
    with_known_arguments,
)
from stream.base.arguments import check_choice, check_whole_number
from stream.base.errors import ArgumentError, closest
from stream.sample.frames import Frames
from stream.sample.rotations import Rotation
from stream.sample.select import Select
from stream.sample.vector import Vector
from stream.statistics.vectors import mixture_statistics

if TYPE_CHECKING:
    from stream.batch.spec import Batch, BatchSpec
    from stream.loader.loader import Loader
    from stream.loader.open_mixture import OpenMixture

Preset = Literal["gr00t_n1d6", "gr00t_n1d7"]
Keys = Mapping[str, Sequence[str]]
Representation = Literal["relative", "delta", "absolute"]
ActionType = Literal["eef", "non_eef"]
ActionFormat = Literal["default", "xyz+rot6d", "xyz+rotvec"]
ROTATIONS: dict[ActionFormat, Rotation | None] = {"default": None, "xyz+rot6d": "rot6d_rows", "xyz+rotvec": "rotvec"}
"""Form of the rotations of each format."""


@dataclass(frozen=True)
class ActionConfig:
    """Representation of one action key, with the names and values of GR00T's ``ActionConfig``.

    Attributes:
        rep: ``relative`` to the state at t; ``absolute`` and ``delta`` pass as stored, as in GR00T.
        type: ``eef`` composes poses in the frame of the tool, ``non_eef`` subtracts.
        format: Form of the poses of ``eef``.
        state_key: Key of the state it is relative to, None for the key of the same name.

    Raises:
        ArgumentError: A value is wrong.
    """

    rep: Representation
    type: ActionType = "non_eef"
    format: ActionFormat = "default"
    state_key: str | None = None

    def __post_init__(self) -> None:
        check_choice("rep", self.rep, get_args(Representation))
        check_choice("type", self.type, get_args(ActionType))
        check_choice("format", self.format, get_args(ActionFormat))
        if (self.type == "eef") != (self.format != "default"):
            raise ArgumentError(f"type={self.type!r} with format={self.format!r}; only eef has a format, and needs one")


@with_known_arguments
def sample(
    preset: Preset = "gr00t_n1d6",
    *,
    action_horizon: int = 16,
    views: Mapping[str, str] | None = None,
    frames: Sequence[int] = (0,),
    state_keys: Keys | None = None,
    action_keys: Keys | None = None,
    action_configs: Mapping[str, ActionConfig] | None = None,
) -> TrainerSample:
    """Return the arguments of ``make_loader`` for GR00T's ``VLAStepData``; ``steps(batch)`` gives them row by row.

    - ``images``: dict of uint8 [b, T, H, W, 3] by view, in the stored size.
    - ``states``: dict of float32 [b, 1, D] by key. ``actions``: dict of float32 [b, action_horizon, D] by key. Raw.
    - ``text``: list of str.
    - ``action_delay``, ``action_prefix_mask``: as of ``make_loader``, if the action has a ``max_delay``.

    Each chunk is complete: the last ``action_horizon - 1`` steps of an episode are not samples, as in GR00T. All
    members need the same dimensions.

    Values stay absolute, as the processor makes keys relative and normalises them, by ``statistics(loader)``. With
    formats of poses in ``action_configs``, rotations of action and state have the form of the format.

    The state has no ``dropout`` here, as 0 is the middle of its range only after the processor: take GR00T's own
    ``state_dropout_prob``.

    Sources: ``gr00t/data/types.py``, ``data/dataset/sharded_single_step_dataset.py`` and ``data/stats.py``. Not done,
    as the processor does it: image size and tokenizer. The embodiment tag is an argument of ``VLAStepData``.

    Args:
        preset: ``gr00t_n1d6`` or ``gr00t_n1d7``; the fields are the same.
        action_horizon: Actions of a chunk.
        views: Camera of each view, by role or name; by default the primary camera.
        frames: Steps of the images, from t. Steps before t need ``--layout frames``.
        state_keys: Dimensions of each key, by their names in ``loader.state_names``; by default one key, ``state``.
        action_keys: The same for actions; by default one key, ``action``.
        action_configs: Representation of keys of the action, by default absolute. ``statistics`` then has
            ``relative_action``, which GR00T otherwise computes into ``meta/relative_stats.json``.

    Raises:
        ArgumentError: An argument is wrong. ``make_loader`` raises it if members have different dimensions, or a key
            names an unknown one.
    """
    check_preset(preset, get_args(Preset))
    if not isinstance(frames, list | tuple | range):
        raise ArgumentError(f"frames={frames!r:.100}; expected a list of steps from t, such as [-1, 0]")
    action_horizon = check_whole_number("action_horizon", action_horizon, least=1)
    views = check_mapping("views", {"primary": "primary"} if views is None else views, example="{'front': 'primary'}")
    configs = _check_configs(action_configs, state_keys, action_keys)
    rotations = {ROTATIONS[config.format] for config in configs.values()} - {None}
    if len(rotations) > 1:
        raise ArgumentError("action_configs: formats xyz+rot6d and xyz+rotvec of one sample; take one of them")
    rotation = rotations.pop() if rotations else None
    return TrainerSample(
        frames=Frames(list(frames), cameras=list(dict.fromkeys(views.values()))),
        action=Vector(action_horizon, rotation=rotation),
        state=Vector(rotation=rotation),
        select=Select(min_future_actions=action_horizon),
        transforms=(ToGr00t(views, state_keys, action_keys, configs),),
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


def statistics(loader: Loader, *, split: str = "train") -> dict[str, dict[str, dict[str, list[Any]]]]:
    """Return the statistics of one embodiment for GR00T's ``StateActionProcessor``, of all members together.

    Args:
        loader: Loader of this sample.
        split: TFDS split of the statistics.

    Returns:
        ``mean``, ``std``, ``min``, ``max``, ``q01`` and ``q99`` of each key, of ``state`` and ``action``; and, of
        relative keys, ``relative_action`` with numbers for each step of complete chunks.

    Raises:
        ArgumentError: The loader is of another trainer, or a key cannot be relative to the state.
    """
    to_gr00t = conversion(loader, ToGr00t)
    dims_by_vector = {"state": to_gr00t.states, "action": to_gr00t.actions}
    result: dict[str, dict[str, dict[str, list[Any]]]] = {}
    for vector_name, numbers in mixture_statistics(loader.data, split=split).items():
        result[vector_name] = {}
        for key, dims in dims_by_vector[vector_name].items():
            result[vector_name][key] = {statistic: values[..., dims].tolist() for statistic, values in numbers.items()}
    for key, config in to_gr00t.action_configs.items():
        if config.rep == "relative":
            relative = _relative_statistics(loader.data, to_gr00t.actions[key], config, split=split)
            result.setdefault("relative_action", {})[key] = relative
    return result


def _relative_statistics(
    mixture: OpenMixture, dims: Sequence[int], config: ActionConfig, *, split: str
) -> dict[str, list[Any]]:
    """Return the statistics of one relative key, of each step: ``calculate_stats_for_key`` of GR00T."""
    spec = mixture.spec
    names = [spec.actions[0].names[dim] for dim in dims]
    members = range(len(spec.datasets))
    absolute = dict.fromkeys(escape(name) for member in members for name in _other_names(spec, member, dims))
    action = replace(
        mixture.sample_spec.action or Vector(),
        relative_to="state",
        poses="body" if config.type == "eef" else "componentwise",
        rotation=ROTATIONS[config.format],
        absolute=tuple(absolute),
        per_step=True,
    )
    relative = with_action(mixture, action)
    positions = [relative.spec.actions[0].names.index(name) for name in names]
    numbers = mixture_statistics(relative, split=split, tails="complete")["action"]
    return {statistic: values[:, positions].tolist() for statistic, values in numbers.items()}


def _other_names(spec: BatchSpec, member: int, dims: Sequence[int]) -> list[str]:
    """Return the names of the stored dimensions of a member's action that are not in a key."""
    stored_dims = set(dims)
    if conversions := spec.relative.get("action"):
        groups = zip(conversions[member].groups, conversions[member].positions, strict=True)
        parts = [(range(position.start, rotation.stop), group) for group, (position, rotation) in groups]
        stored_dims = {dim for part, group in parts if {*part} & {*dims} for dim in (*group.position, *group.rotation)}
    stored_names = spec.read_vectors["action"][member].names
    return [name for dim, name in enumerate(stored_names) if dim not in stored_dims]


@dataclass(frozen=True)
class ToGr00t(Conversion):
    """Conversion of a batch.

    Attributes:
        views: Camera of each view.
        state_keys, action_keys: Names of the dimensions of each key, None for one key.
        action_configs: Representation of keys of the action.
        states, actions: Numbers of the dimensions of each key.
    """

    takes_normalized: ClassVar[bool] = False

    views: Mapping[str, str]
    state_keys: Keys | None = None
    action_keys: Keys | None = None
    action_configs: Mapping[str, ActionConfig] = field(default_factory=dict)
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
            **delay_of(batch),
        }


def _check_configs(argument: Any, state_keys: Keys | None, action_keys: Keys | None) -> dict[str, ActionConfig]:
    """Return the representations by key; raise ArgumentError for keys that do not exist."""
    if argument is None:
        return {}
    configs: dict[str, ActionConfig] = check_mapping(
        "action_configs", argument, example="{'joint': gr00t.ActionConfig('relative')}"
    )
    states, actions = list(state_keys or ("state",)), list(action_keys or ("action",))
    for key, config in configs.items():
        if not isinstance(config, ActionConfig):
            raise ArgumentError(f"action_configs[{key!r}]={config!r:.100}; expected a gr00t.ActionConfig")
        if key not in actions:
            raise ArgumentError(f"action_configs: no action key {key!r}; {closest(key, actions, noun='keys')}")
        state_key = config.state_key or key
        if config.rep == "relative" and state_key not in states:
            hint = closest(state_key, states, noun="keys")
            raise ArgumentError(f"action_configs: no state key {state_key!r}, which {key!r} is relative to; {hint}")
    return configs


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
