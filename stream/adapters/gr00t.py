"""GR00T N1.6: the fields of its ``VLAStepData``, which its processor takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stream.adapters.opening import SIZE, check_mapping, conversion, open_loader
from stream.base.arguments import check_whole
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

    Each chunk is complete: the last ``action_horizon - 1`` steps of an episode are no samples, as in GR00T.

    Sources: ``gr00t/data/types.py`` and ``gr00t/data/dataset/sharded_single_step_dataset.py``. Not done: the processor,
    with normalisation (by ``statistics``), image size and tokenizer; and the embodiment tag, which you give to
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
        ArgumentError: As for ``make_loader``; the members have different dimensions, or a key names none of them.
    """
    if not isinstance(frames, list | tuple | range):
        raise ArgumentError(f"frames={frames!r:.100}; expected a list of steps from t, such as [-1, 0]")
    action_horizon = check_whole("action_horizon", action_horizon, least=1)
    views = check_mapping("views", views or {"primary": "primary"}, example="{'front': 'primary'}")

    def convert(data: Any) -> ToGr00t:
        states = _dims(data, "state", state_keys)
        return ToGr00t(views, states, _dims(data, "action", action_keys))

    own = {
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
        own=own,
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
        ArgumentError: The loader is not one of this module.
    """
    made = conversion(loader, ToGr00t)
    keys = {"state": made.states, "action": made.actions}
    return {
        name: {
            key: {kind: values[dims].tolist() for kind, values in numbers.items()} for key, dims in keys[name].items()
        }
        for name, numbers in mixture_statistics(loader.data, split=split).items()
    }


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


def _dims(data: Any, key: Any, keys: Keys | None) -> dict[str, list[int]]:
    """Return the numbers of the dimensions of each key."""
    vectors = data.spec.vectors(key)
    for name, vector in zip(data.names, vectors, strict=True):
        if vector.names != vectors[0].names:
            raise ArgumentError(
                f"{key} of {name} is {', '.join(vector.names)}, that of {data.names[0]} is "
                f"{', '.join(vectors[0].names)}; take one {key}_space, or load them separately"
            )
    names = list(vectors[0].names)
    chosen = {key: names} if keys is None and names else dict(keys or {})
    for wanted in (each for dims in chosen.values() for each in dims):
        if wanted not in names:
            raise ArgumentError(f"{key}_keys: no dimension {wanted!r}; {closest(wanted, names, noun='dimensions')}")
    return {name: [names.index(each) for each in dims] for name, dims in chosen.items()}
