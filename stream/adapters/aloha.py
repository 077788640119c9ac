"""ALOHA's joints and grippers as openpi's pi models were trained on them: ``adapt_to_pi``, and back for a robot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stream.base.errors import ArgumentError

if TYPE_CHECKING:
    from stream.batch.spec import Batch
    from stream.loader.open_mixture import OpenMixture

SIGNS = (1.0, -1.0, -1.0, 1.0, 1.0, 1.0, 1.0) * 2
"""Signs of the 14 dimensions: of each arm six joints and a gripper, left arm first."""
GRIPPERS = (6, 13)
_FINGERS = (0.01844, 0.05800)
"""Distance of the fingers in metres, closed and open, of a gripper of 0 and 1 in the state."""
_HORN, _ARM = 0.022, 0.036
"""Lengths of the linkage of the fingers in metres."""
_ENCODER = (0.5476, 1.6296)
"""Angles of the gripper in radians that are 0 and 1 for the pi models."""
_COMMANDS = (-0.6213, 1.4910)
"""Angles in radians of a gripper of 0 and 1 in the action."""


def adapt_state(state: Any) -> np.ndarray:
    """Return states of ALOHA as the pi models take them, float [..., 14], in the dtype of ``state``.

    Three joints of each arm, at the positions 1 and 2, have the other sign. The gripper becomes an angle again, which
    ALOHA's software had made the distance of the fingers. Source: ``_decode_state`` in openpi's
    ``policies/aloha_policy.py``.

    >>> adapt_state(np.array([0.0, 1, 1, 0, 0, 0, 0.5] * 2))[:7].round(6).tolist()
    [0.0, -1.0, -1.0, 0.0, 0.0, 0.0, -0.140056]
    """
    adapted, dtype = _flipped(state)
    closed, opened = _FINGERS
    fingers = adapted[..., GRIPPERS] * (opened - closed) + closed
    sine = (_HORN**2 + fingers**2 - _ARM**2) / (2 * _HORN * fingers)
    low, high = _ENCODER
    adapted[..., GRIPPERS] = (np.arcsin(np.clip(sine, -1, 1)) - low) / (high - low)
    return adapted.astype(dtype)


def adapt_actions(actions: Any) -> np.ndarray:
    """Return actions of ALOHA as the pi models take them, float [..., 14], in the dtype of ``actions``.

    Grippers have another formula than in the state. Differences of joints adapt like joints. Source:
    ``_encode_actions_inv``.

    >>> adapt_actions(np.array([0.0, 1, 1, 0, 0, 0, 0.5] * 2))[:7].round(6).tolist()
    [0.0, -1.0, -1.0, 0.0, 0.0, 0.0, -0.11275]
    """
    adapted, dtype = _flipped(actions)
    low, high = _COMMANDS
    adapted[..., GRIPPERS] = adapted[..., GRIPPERS] * (high - low) + low - _ENCODER[0]
    return adapted.astype(dtype)


def restore_actions(actions: Any) -> np.ndarray:
    """Return commands for ALOHA from absolute actions of a pi model, the inverse of ``adapt_actions``.

    Source: ``_encode_actions``, which ``AlohaOutputs`` applies to the first 14 dimensions.
    """
    restored, dtype = _flipped(actions)
    low, high = _COMMANDS
    restored[..., GRIPPERS] = (restored[..., GRIPPERS] + _ENCODER[0] - low) / (high - low)
    return restored.astype(dtype)


def _flipped(values: Any) -> tuple[np.ndarray, np.dtype[Any]]:
    """Return a copy of values with flipped joints, float64, and the dtype of the values."""
    numbers = np.asarray(values)
    if numbers.dtype.kind != "f" or not numbers.ndim or numbers.shape[-1] != len(SIGNS):
        raise ArgumentError(
            f"an array of shape {numbers.shape} and {numbers.dtype}; expected floats of {len(SIGNS)} dimensions: six "
            "joints and the gripper of the left arm, then of the right arm"
        )
    return numbers * np.array(SIGNS), numbers.dtype


@dataclass(frozen=True)
class AdaptToPi:
    """A transform of ALOHA's action and state in front of their normalisation.

    Actions may be relative to the state already: the sign of a difference is that of its joints, and grippers are
    absolute.
    """

    def bind(self, data: OpenMixture) -> AdaptToPi:
        """Check the dimensions of a loader's data; raise ArgumentError if they are not those of ALOHA."""
        for vector_name in ("action", "state"):
            for dataset_name, vector in zip(data.names, data.spec.vectors(vector_name), strict=True):
                if vector.size != len(SIGNS):
                    raise ArgumentError(
                        f"adapt_to_pi: {vector_name} of {dataset_name} has {vector.size} dimensions; expected "
                        f"{len(SIGNS)}: six joints and the gripper of the left arm, then of the right arm"
                    )
        for dataset_name, conversion in zip(data.names, data.spec.relative.get("action", ()), strict=False):
            absolute = tuple(
                dim
                for group in conversion.groups
                if not group.is_relative
                for dim in (*group.position, *group.rotation)
            )
            if conversion.relative_to is not None and absolute != GRIPPERS:
                names = ", ".join(conversion.names[dim] for dim in absolute) or "none"
                raise ArgumentError(
                    f"adapt_to_pi: absolute dimensions of the action of {dataset_name} are {names}; expected the "
                    f"grippers, {conversion.names[GRIPPERS[0]]} and {conversion.names[GRIPPERS[1]]}: name them in "
                    "absolute=, as replace(sample.action, absolute=[...])"
                )
        return self

    def map(self, batch: Batch) -> Batch:
        """Return the batch with adapted vectors; values stay 0 where their mask is False."""
        adapted = {
            "action": adapt_actions(batch["action"]),
            "state": adapt_state(batch["state"]),
        }
        return {**batch, **{key: np.where(batch[f"{key}_mask"], values, 0) for key, values in adapted.items()}}
