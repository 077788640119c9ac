"""The success of an episode, where the source tells it by a flag or by a path of a folder."""

from __future__ import annotations

import numpy as np

from convert.source.episode import Column, Episode, absent_column
from convert.source.features import SUCCESS, Feature


def episode_success(episode: Episode, feature: Feature) -> Column:
    """Return the column of an episode.

    Args:
        episode: Episode.
        feature: Text, or a number of which 1 is success and 0 failure, of the steps or of the episode. Steps that
            differ tell nothing.
    """
    values = episode.column(feature).values
    told = set(values.tolist() if isinstance(values, np.ndarray) else values or ())
    only = told.pop() if len(told) == 1 else None
    found = path_success(only) if isinstance(only, str) else bool(only) if only in (0, 1) else None
    if found is None:
        return absent_column(SUCCESS, 1)
    return Column(feature=SUCCESS, values=np.array([found]), lengths=(), rows=1)


def path_success(path: str) -> bool | None:
    """Return True for a path with a folder ``success``, False for one with ``failure``, else None.

    >>> path_success("/data/lab/success/2023-05-01"), path_success("/lab/failure/1.h5"), path_success("/lab/1.h5")
    (True, False, None)
    """
    folders = {"success", "failure"} & set(path.split("/")[:-1])
    return folders == {"success"} if len(folders) == 1 else None
