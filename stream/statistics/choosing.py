"""Normalisation as an argument and among the transforms of a loader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stream.statistics.methods import METHODS
from stream.statistics.normalize import SETTINGS, Normalize
from stream.statistics.vectors import Mixture
from stream.storage.errors import ArgumentError, closest


def bind_transforms(transforms: Sequence[Any], data: Mixture, normalize: Any = None) -> tuple[Any, ...]:
    """Return the transforms and the normalisation of a loader, with every ``Normalize`` bound to its data.

    Args:
        transforms: Transforms.
        data: Data of the loader.
        normalize: Argument of ``make_loader``.

    Raises:
        ArgumentError: The argument is none of those; a vector would be normalised twice, or statistics belong to other
            data.
    """
    chosen = _choose(normalize, data)
    made = tuple(each.bind(data) if isinstance(each, Normalize) else each for each in transforms)
    made += () if chosen is None else (chosen.bind(data),)
    own = [each for each in made if isinstance(each, Normalize)]
    keys = [key for each in own for key in each.keys]
    for key in keys:
        if keys.count(key) > 1:
            raise ArgumentError(
                f"the {key} would be normalised twice, by {' and '.join(map(repr, own))}; leave one out of transforms, "
                "or give normalize=False"
            )
    return made


def _choose(chosen: Any, data: Mixture) -> Normalize | None:
    if chosen is None or chosen is False or isinstance(chosen, Normalize):
        return chosen or None
    settings = {"method": chosen} if isinstance(chosen, str) else chosen
    if not isinstance(settings, Mapping):
        raise ArgumentError(
            f"normalize={chosen!r:.100}; expected a method ({', '.join(METHODS)}), a mapping of the arguments of "
            "stream.Normalize, one itself, or None"
        )
    known = [*SETTINGS, "leave"]
    for name in settings:
        if name not in known:
            raise ArgumentError(f"normalize: no setting {name!r:.100}; {closest(name, known, noun='settings')}")
    return Normalize(data, **settings)
