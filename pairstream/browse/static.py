"""Overview, findings and chosen episodes as plain files, which open without a server."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from pairstream.browse.browsed_root import BrowsedRoot
from pairstream.browse.doctor import Finding, FindingExample, doctor_command, read_findings, read_report
from pairstream.browse.facts import Facts
from pairstream.browse.markup import (
    OVERVIEW_SCRIPT,
    STYLE,
    THEME_SCRIPT,
    THEME_SWITCH,
    findings_html,
    overview_html,
    totals,
)
from pairstream.view.player import PLAYER_FILE, describe_episode, player_call
from pairstream.view.tracks import Tracks
from stream.base.errors import ArgumentError, FormatError
from stream.storage.remote import check_local

Chosen = tuple[str, str, int]
"""Dataset, split and number of an episode."""
_PAGE = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title} · pairstream</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style>{script}</head>
<body><nav class="top"><a href="index.html">Overview</a><span title="{location}">{location}</span>{switch}</nav>
<main>{content}</main></body></html>
"""


def write_static(
    root: BrowsedRoot, folder: Path, *, episodes: Sequence[Chosen] | str | None, doctor: bool, most_bytes: int
) -> tuple[int, int]:
    """Write the pages of a root into a new folder; return the count of episodes, and the bytes of all files.

    Episodes are the first of each dataset by default; an episode above its share of ``most_bytes`` has only every
    second, third, ... frame. ``doctor`` adds the findings of ``pairstream doctor``.

    Raises:
        ArgumentError: The folder holds files or is an address, or an episode does not exist.
        StreamError: An index is damaged (damaged frames are only left out), or ``pairstream doctor`` failed.
        OSError: The folder cannot be written to.
    """
    check_local(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ArgumentError(f"--static {folder}: exists and is not empty; give a new folder")
    chosen_episodes = list(dict.fromkeys(_choose(root, episodes)))
    all_tracks = [root.episode(*chosen) for chosen in chosen_episodes]
    findings = None
    if doctor:
        command = doctor_command(root.catalog.location, list(root.names))
        process = subprocess.run(command, capture_output=True, check=False)
        findings = read_findings(root, read_report(process.stdout, process.stderr))
    folder.mkdir(parents=True, exist_ok=True)
    writer = _Writer(root, folder, chosen_episodes)
    max_bytes = most_bytes // max(1, len(chosen_episodes) + 1)
    for tracks in all_tracks:
        writer.write_episode(tracks, max_bytes)
    writer.write_overview(findings)
    if findings is not None:
        writer.write_findings(findings, max_bytes)
    return len(chosen_episodes), sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _choose(root: BrowsedRoot, episodes: Sequence[Chosen] | str | None) -> list[Chosen]:
    if episodes is None:
        return [(facts["dataset"], facts["first_split"], 0) for facts in root.facts() if facts["episodes"]]
    if not isinstance(episodes, str):
        return list(episodes)
    marked_episodes = [
        (name, split, number)
        for name in root.marks.datasets
        for split in root.dataset(name).shards
        for number in root.table(name, split).find_ids(root.marks.ids(name)).values()
    ]
    if not marked_episodes:
        raise ArgumentError(f"--episodes marked: {root.marks.path} marks no episode of {root.catalog.location}")
    return marked_episodes


@dataclass(frozen=True)
class _Writer:
    """Files of a folder; ``chosen`` are the episodes that have a page."""

    root: BrowsedRoot
    folder: Path
    chosen: Sequence[Chosen]

    def write_overview(self, findings: Sequence[Finding] | None) -> None:
        all_facts = self.root.facts()
        episode_links = "".join(
            f'<li><a class="plain" href="{_page((name, split, number))}">{name}, {split}, episode {number + 1}</a></li>'
            for name, split, number in self.chosen
        )
        head = f"<h1>{escape(str(self.root.catalog.location))}</h1><p class='faint'>{totals(all_facts)}</p>"
        if findings is not None:
            head += f'<p><a class="plain" href="findings.html">{len(findings)} findings</a></p>'

        def picture(facts: Facts) -> str:
            return self._path((facts["dataset"], facts["first_split"], 0), 0, 0)

        datasets = overview_html(all_facts, self.root.damaged, picture=picture, links=False)
        self._write(
            "index.html", "Overview", f"{head}{datasets}{OVERVIEW_SCRIPT}<h2>Episodes</h2><ul>{episode_links}</ul>"
        )

    def write_findings(self, findings: Sequence[Finding], max_bytes: int) -> None:
        bytes_left = max_bytes

        def picture(finding: Finding, example: FindingExample) -> str:
            nonlocal bytes_left
            episode = (finding["dataset"], finding["split"], example["episode"])
            picture_path = self._path(episode, 0, example["step"]) if bytes_left > 0 else ""
            bytes_left -= (self.folder / picture_path).stat().st_size if picture_path else 0
            return picture_path

        def address(finding: Finding, example: FindingExample) -> str:
            episode = (finding["dataset"], finding["split"], example["episode"])
            return _page(episode) if episode in self.chosen else ""

        table = findings_html(findings, picture=picture, address=address)
        self._write("findings.html", "Findings", f"<h1>Findings</h1>{table}")

    def write_episode(self, tracks: Tracks, max_bytes: int) -> None:
        episode = (tracks.dataset.name, tracks.index.split, tracks.episode)
        stored_records = np.concatenate([track.records[track.records >= 0] for track in tracks.cameras])
        num_bytes = int(tracks.index.records.take("num_bytes", np.unique(stored_records)).sum())
        stride = max(1, math.ceil(num_bytes / max(1, max_bytes)))

        def frames(camera_number: int) -> list[Any]:
            """Return the file of each step's frame, or that of the last written one before it."""
            frame_paths: list[Any] = [None] * tracks.steps
            stored_steps = tracks.cameras[camera_number].steps.tolist()
            for position, step in enumerate(stored_steps):
                frame_paths[step] = self._picture(episode, camera_number, stored_steps[position - position % stride])
            return frame_paths

        stride_text = f"Every {stride}. frame" if stride > 1 else ""
        note = f'<p class="faint">{stride_text}</p>' if stride_text else ""
        head = f"<h1>{escape(tracks.title)}</h1>{note}"
        player = player_call(describe_episode(tracks, frames), step=None)
        script = f"<script>{PLAYER_FILE.read_text('utf-8')}</script>{player}"
        self._write(_page(episode), tracks.title, f"{head}<div id='player'></div>\n{script}")

    def _path(self, episode: Chosen, camera_number: int, step: int) -> str:
        """Write a frame and return its path from the pages; a hole or a damaged frame has none."""
        picture = self._picture(episode, camera_number, step)
        return picture if isinstance(picture, str) else ""

    def _picture(self, episode: Chosen, camera_number: int, step: int) -> str | dict[str, str]:
        """Write a frame and return its path from the pages, or ``{"fault": text}``."""
        relative_path = f"frames/{'/'.join(map(str, episode))}/{camera_number}/{step}.jpg"
        picture_path = self.folder / relative_path
        if picture_path.exists():
            return relative_path
        try:
            picture = self.root.episode(*episode).camera(camera_number).read_picture(step)
        except (ArgumentError, FormatError) as error:
            return {"fault": str(error)}
        picture_path.parent.mkdir(parents=True, exist_ok=True)
        picture_path.write_bytes(picture)
        return relative_path

    def _write(self, file_name: str, title: str, content: str) -> None:
        parts = {"title": escape(title), "location": escape(str(self.root.catalog.location)), "content": content}
        page_html = _PAGE.format(**parts, style=STYLE, script=THEME_SCRIPT, switch=THEME_SWITCH)
        (self.folder / file_name).write_text(page_html, "utf-8", errors="backslashreplace")


def _page(episode: Chosen) -> str:
    return f"{'-'.join(map(str, episode))}.html"
