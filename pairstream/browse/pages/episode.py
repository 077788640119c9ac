"""An episode, to play."""

from __future__ import annotations

from html import escape
from urllib.parse import quote

from fastapi.responses import HTMLResponse

from pairstream.browse.browsed_root import BrowsedRoot, dataset_url, episode_url
from pairstream.browse.shell import plain_page
from pairstream.view.player import describe_episode, facts_text, player_call


def show(root: BrowsedRoot, dataset: str, split: str, number: int, step: int = 0, window: int = 0) -> HTMLResponse:
    """Return the page of an episode at a step, from which on ``window`` steps are marked as those of a sample.

    Raises:
        ArgumentError: There is no such dataset, split or episode.
        FormatError: The index is damaged.
    """
    tracks = root.episode(dataset, split, number)
    num_episodes = len(tracks.index.episodes)

    def frames(camera_number: int) -> str:
        return root.frame_url(dataset, split, number, camera_number, 0).replace("/0.jpg", "/{step}.jpg")

    def neighbour_url(neighbour: int) -> str:
        return episode_url(dataset, split, neighbour) if 0 <= neighbour < num_episodes else ""

    marked_steps = (step, min(step + window, tracks.steps)) if window else None
    player_script = player_call(
        describe_episode(tracks, frames, window=marked_steps),
        step=step,
        marked=root.marks.has(dataset, tracks.facts["episode_id"]),
        mark=f"/mark/{quote(dataset)}/{quote(split)}/{number}",
        previous=neighbour_url(number - 1),
        next=neighbour_url(number + 1),
    )
    content = (
        f"<a class='plain' href='{dataset_url(dataset, split)}'>all episodes</a>"
        f"<div class='faint'>{escape(facts_text(tracks))}</div><div id='player'></div>"
        f"<script src='/player.js'></script>{player_script}"
    )
    return plain_page(root, f"{dataset}, {split}, episode {number} of {num_episodes:,}", content)
