"""Runs, and the window of a sample in its episode: the steps of the frames and actions of a row of a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from pairstream.view.tracks import Tracks, open_tracks
from stream.base.errors import ArgumentError
from stream.loader.open_mixture import OpenMixture
from stream.loader.rank_plan import RankPlan
from stream.loader.saved import SavedTransforms, read_saved
from stream.order.reference import SampleRef
from stream.storage.cache_folder import CacheLike


class SampleWindow(NamedTuple):
    """Steps [start, stop) of the frames and actions of a row of a batch, inside its episode, and a text about them."""

    ref: SampleRef
    start: int
    stop: int
    text: str


def find_window(rank_plan: RankPlan, run_step: int, row: int) -> tuple[Tracks, SampleWindow]:
    """Return the episode of a row of a batch, and the row's window in it; raise ArgumentError if it does not exist."""
    mixture = rank_plan.mixture
    sample_refs = mixture.describe(rank_plan.rows_of([run_step]))
    if row >= len(sample_refs):
        raise ArgumentError(f"--row {row}: a batch of this rank has {len(sample_refs)} rows, counted from 0")
    sample_ref = sample_refs[row]
    member_number = mixture.names.index(sample_ref.dataset)
    splits = {(index.member, index.split): index for index in mixture.sample_index.splits}
    tracks = open_tracks(mixture.datasets[member_number], splits[member_number, sample_ref.split], sample_ref.episode)
    start, stop = window_of(sample_ref, mixture)
    stop = min(stop, tracks.steps)
    text = f"row {row} of step {run_step} of the run: {steps_text(start, stop - 1)}"
    return tracks, SampleWindow(sample_ref, start, stop, text)


def open_run(
    loader: str | Path, *, root: Any = None, cache: CacheLike = None, rank: int | None = None
) -> tuple[RankPlan, SavedTransforms]:
    """Return the plan of a run's batches and the transforms of its ``loader.json``; a ``Loader`` would import Grain.

    ``root``, ``cache`` and ``rank`` are taken instead of the run's own.
    """
    overrides = {} if rank is None else {"rank": rank}
    mixture, run_config, saved_transforms = read_saved(loader, root=root, cache=cache, overrides=overrides)
    return RankPlan(mixture, run_config), saved_transforms


def window_of(sample_ref: SampleRef, mixture: OpenMixture) -> tuple[int, int]:
    """Return the steps of a sample's frames and actions, [start, stop); ``stop`` may lie beyond the episode."""
    member_number, action_span = mixture.names.index(sample_ref.dataset), mixture.spec.action_span
    first_action, last_action = (sample_ref.step + action_span.distances(member_number)[[0, -1]]).tolist()
    frame_steps = (sample_ref.step, *sample_ref.frame_steps)
    return max(0, min(*frame_steps, first_action)), max(*frame_steps, last_action) + 1


def steps_text(first_step: int, last_step: int) -> str:
    """Return the name of some steps.

    >>> steps_text(24, 24), steps_text(3, 8)
    ('step 24', 'steps 3..8')
    """
    return f"step {first_step}" if first_step == last_step else f"steps {first_step}..{last_step}"
