"""Choice of the steps t that are samples."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stream.base.arguments import check_choice, check_whole_number
from stream.base.errors import ArgumentError
from stream.base.plain_values import canonical_choice, drop_names
from stream.base.value_object import ValueObject, known_fields
from stream.sample.choices import Choice, is_for_all, parse_episodes, parse_keep_ranges
from stream.sample.filters import MISSING_COLUMN, MissingColumn, canonical_conditions, parse_conditions

_MOST_ACTIONS = 1_000_000


@known_fields
@dataclass(frozen=True, repr=False, kw_only=True)
class Select(ValueObject):
    """Steps t of the episodes that are samples; all choices must hold::

        step                                    0  1  2  3  4  5  6  7      an episode of 8 steps
        Select(min_future_actions=3)            t  t  t  t  t  t  .  .      3 actions exist from t on
        Select(keep_ranges={id: [[2, 5]]})      .  .  t  t  t  .  .  .      t from 2, below 5
        Select(where=[("success", "==", True)])                             all or none, by a column of the episode

    Each of ``where``, ``episodes`` and ``keep_ranges`` is a choice for every dataset, or a mapping of datasets to
    choices. A member of a mixture may have its own ``Select``, whose choices must hold too.

    Args:
        where: Conditions ``(column, operator, value)``. Operators are == != < <= > >= in "not in" contains matches
            is_finite; columns are those of the index, labels included.
        episodes: Episodes to keep: a list of their ``episode_id``, in which ``*`` matches any text;
            ``{"leave_out": ids}``; or a file with either.
        keep_ranges: Steps t to keep: a mapping of episodes to lists of [start, stop), or a JSON file such as openpi's
            for DROID. Episodes that are not named are left out.
        min_future_actions: Actions that the episode must have from t on, as many steps apart as the ``stride`` of the
            action; steps t with fewer are left out. Steps whose action does not exist in the action's space are always
            left out.
        on_missing_column: Treatment of datasets that lack a column of ``where``: ``error``; ``keep`` all of their
            samples; ``drop``, a mixture without them.

    Raises:
        ArgumentError: A value is wrong.

    >>> Select(where=[("success", "==", True)], min_future_actions=16)
    Select(where=[['success', '==', True]], min_future_actions=16)
    """

    where: Sequence[Sequence[Any]] | Mapping[str, Any] | None = None
    episodes: Sequence[str] | Mapping[str, Any] | str | Path | None = None
    keep_ranges: Mapping[str, Any] | str | Path | None = None
    min_future_actions: int = 1
    on_missing_column: MissingColumn = "error"

    def __post_init__(self) -> None:
        check_choice("on_missing_column", self.on_missing_column, MISSING_COLUMN)
        num_actions = check_whole_number("min_future_actions", self.min_future_actions, least=1)
        if num_actions > _MOST_ACTIONS:
            raise ArgumentError(f"min_future_actions={num_actions}; at most {_MOST_ACTIONS:,}")
        self._set(
            where=canonical_conditions(self.where),
            episodes=canonical_choice("episodes", self.episodes),
            keep_ranges=canonical_choice("keep_ranges", self.keep_ranges),
            min_future_actions=num_actions,
        )

    def choices(self, datasets: Sequence[str]) -> dict[str, list[Choice]]:
        """Return the choices among the samples of each dataset; raises ArgumentError for a dataset that is unknown."""
        choices_by_dataset: dict[str, list[Choice]] = {}
        for parse, value in (
            (parse_conditions, self.where),
            (parse_episodes, self.episodes),
            (parse_keep_ranges, self.keep_ranges),
        ):
            for name, choices in parse(value, datasets).items():
                choices_by_dataset.setdefault(name, []).extend(choices)
        return choices_by_dataset

    def without(self, datasets: Collection[str]) -> Select:
        """Return the choices without those of some datasets."""
        keep_ranges = self.keep_ranges if is_for_all(self.keep_ranges) else drop_names(self.keep_ranges, datasets)
        where, episodes = drop_names(self.where, datasets), drop_names(self.episodes, datasets)
        return replace(self, where=where, episodes=episodes, keep_ranges=keep_ranges)
