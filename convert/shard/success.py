"""The success of an episode, given by a flag or by the path of a folder."""

from __future__ import annotations

import numpy as np

from convert.source.episode import Column, Episode, absent_column
from convert.source.features import SUCCESS, Feature


def episode_success(episode: Episode, feature: Feature) -> Column:
    """Return the column of an episode from texts, or numbers of which 1 is success; steps that differ tell nothing."""
    values = episode.column(feature).values
    distinct_values = set(values.tolist() if isinstance(values, np.ndarray) else values or ())
    value = distinct_values.pop() if len(distinct_values) == 1 else None
    is_success = path_success(value) if isinstance(value, str) else bool(value) if value in (0, 1) else None
    if is_success is None:
        return absent_column(SUCCESS, 1)
    return Column(feature=SUCCESS, values=np.array([is_success]), lengths=(), rows=1)


def path_success(episode_path: str) -> bool | None:
    """Return True for a path with a folder ``success``, False for one with ``failure``, else None.

    >>> path_success("/data/lab/success/2023-05-01"), path_success("/lab/failure/1.h5"), path_success("/lab/1.h5")
    (True, False, None)
    """
    outcome_folders = {"success", "failure"} & set(episode_path.split("/")[:-1])
    return outcome_folders == {"success"} if len(outcome_folders) == 1 else None
