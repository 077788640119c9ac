"""An episode, to play."""

from __future__ import annotations

from html import escape
from urllib.parse import quote

from fastapi.responses import HTMLResponse

from pairstream.browse.opened import Opened, dataset_url, episode_url
from pairstream.browse.shell import plain_page
from pairstream.view.player import describe_episode, facts_text, player_call


def show(opened: Opened, dataset: str, split: str, number: int, *, step: int, window: int = 0) -> HTMLResponse:
    """Return the page of an episode.

    Args:
        opened: Root.
        dataset, split, number: Episode.
        step: Step to open.
        window: Count of steps from there on to mark as those of a sample.

    Raises:
        ArgumentError: There is no such dataset, split or episode.
        FormatError: The index is damaged.
    """
    tracks = opened.episode(dataset, split, number)
    described = describe_episode(
        tracks,
        lambda camera: opened.frame_url(dataset, split, number, camera, 0).replace("/0.jpg", "/{step}.jpg"),
        window=(step, min(step + window, tracks.steps)) if window else None,
    )
    count = len(tracks.index.episodes)
    around = {"previous": number - 1, "next": number + 1}
    call = player_call(
        described,
        step=step,
        marked=opened.marks.has(dataset, tracks.facts["episode_id"]),
        mark=f"/mark/{quote(dataset)}/{quote(split)}/{number}",
        **{key: episode_url(dataset, split, each) if 0 <= each < count else "" for key, each in around.items()},
    )
    content = (
        f"<a class='plain' href='{dataset_url(dataset, split)}'>all episodes</a>"
        f"<div class='faint'>{escape(facts_text(tracks))}</div><div id='player'></div>"
        f"<script src='/player.js'></script>{call}"
    )
    return plain_page(opened, f"{dataset}, {split}, episode {number} of {count:,}", content)
