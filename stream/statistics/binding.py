"""The transforms and the normalisation of a loader, bound to its data and checked against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stream.base.errors import ArgumentError, closest
from stream.statistics.methods import METHODS
from stream.statistics.mixture import Mixture
from stream.statistics.normalize import SETTINGS, Normalize
from stream.statistics.transformed import check_unchanged


def bind_transforms(transforms: Sequence[Any], data: Mixture, normalize: Any = None) -> tuple[Any, ...]:
    """Return the transforms and the normalisation of a loader, bound to its data where they have a ``bind``.

    Raises:
        ArgumentError: ``normalize`` is something else, a vector would be normalised twice, or statistics belong to
            other data.
    """
    code = [transform for transform in transforms if not hasattr(transform, "bind")]
    chosen = _choose(normalize, data, code)
    bound = [transform.bind(data) if hasattr(transform, "bind") else transform for transform in transforms]
    bound += [] if chosen is None else [chosen.bind(data)]
    normalizers = [transform for transform in bound if isinstance(transform, Normalize)]
    vector_keys = [vector_key for transform in normalizers for vector_key in transform.keys]
    for vector_key in vector_keys:
        if vector_keys.count(vector_key) > 1:
            raise ArgumentError(
                f"the {vector_key} would be normalised twice, by {' and '.join(map(repr, normalizers))}; leave one out "
                "of transforms, or give normalize=False"
            )
    is_computed = normalize is not None and not isinstance(normalize, Normalize | bool)
    is_computed |= any(getattr(transform, "is_computed", False) for transform in transforms)
    is_transformed = isinstance(normalize, Mapping) and normalize.get("statistics") == "transformed"
    if code and is_computed and not is_transformed:
        check_unchanged(data, code, vector_keys)
    for transform in bound:
        if hasattr(transform, "check_transforms"):
            transform.check_transforms(bound)
            _check_state_dropout(data, "state" in vector_keys)
    return tuple(bound)


def _check_state_dropout(data: Mixture, normalizes_state: bool) -> None:
    """Raise ArgumentError if a conversion to a trainer's keys would get dropped states among raw ones."""
    if data.spec.state_dropout is not None and not normalizes_state:
        raise ArgumentError(
            f"state=Vector(dropout={data.spec.state_dropout.probability}): this trainer gets raw states here, where 0 "
            "is a state like others; take normalize=True of its sample, or the dropout of the trainer, such as "
            "GR00T's state_dropout_prob"
        )


def describe_transforms(transforms: Sequence[Any]) -> dict[str, Any]:
    """Return the description of transforms in a state: the normalisations, and the names of transforms in code."""
    normalizers = [transform for transform in transforms if isinstance(transform, Normalize)]
    return {
        "normalize": "; ".join(transform.describe() for transform in normalizers) or None,
        "transforms": [type(transform).__name__ for transform in transforms if not isinstance(transform, Normalize)],
    }


def _choose(argument: Any, data: Mixture, transforms: Sequence[Any]) -> Normalize | None:
    if argument is None or argument is False or isinstance(argument, Normalize):
        return argument or None
    settings = {"method": argument} if isinstance(argument, str) else argument
    if not isinstance(settings, Mapping):
        raise ArgumentError(
            f"normalize={argument!r:.100}; expected a method ({', '.join(METHODS)}), a mapping of the arguments of "
            "stream.Normalize, one itself, or None"
        )
    available = [*SETTINGS, "leave", "statistics"]
    for setting in settings:
        if setting not in available:
            hint = closest(setting, available, noun="settings")
            raise ArgumentError(f"normalize: no setting {setting!r:.100}; {hint}")
    return Normalize(data, **settings, transforms=transforms)
