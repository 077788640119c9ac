"""Relative actions of trainers whose own code makes them relative, for their statistics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stream.loader.open_mixture import OpenMixture
from stream.sample.vector import Vector


def with_action(mixture: OpenMixture, action: Vector) -> OpenMixture:
    """Return the mixture with another action of its samples.

    Args:
        mixture: Data of a loader, whose batches hold absolute actions.
        action: Action as the trainer's code makes it.

    Raises:
        ArgumentError: The action of a dataset cannot be relative to its state; the message names both.
    """
    return OpenMixture(mixture.root, mixture.mixture, replace(mixture.sample_spec, action=action))


def substring_patterns(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns of ``Vector(absolute=)`` that match any of some texts inside a name, in any case.

    >>> substring_patterns(["arm_1"])
    ('*[aA][rR][mM]_1*',)
    """
    letters = ([f"[{letter.lower()}{letter.upper()}]" if letter.isalpha() else letter for letter in t] for t in texts)
    return tuple(f"*{''.join(text)}*" for text in letters)
