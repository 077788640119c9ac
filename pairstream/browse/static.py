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

from pairstream.browse.doctor import Finding, Place, doctor_command, read_findings, read_report
from pairstream.browse.facts import DatasetFacts
from pairstream.browse.markup import STYLE, findings_html, overview_html, totals
from pairstream.browse.opened import Opened
from pairstream.view.player import static_page
from pairstream.view.tracks import Tracks
from stream.base.errors import ArgumentError, FormatError
from stream.storage.remote import check_local

Chosen = tuple[str, str, int]
"""Dataset, split and number of an episode."""
_PAGE = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title} · pairstream</title>
<style>body {{ font: 15px/1.5 system-ui, sans-serif; margin: 1.5em; }} {style}</style></head>
<body>{content}</body></html>
"""


@dataclass(frozen=True)
class Written:
    """Result of ``write_static``: its first page, count of episodes, and bytes of all files."""

    index: Path
    episodes: int
    bytes: int


def write_static(
    opened: Opened, folder: Path, *, episodes: Sequence[Chosen] | str | None, doctor: bool, most_bytes: int
) -> Written:
    """Write the pages of a root as files.

    Args:
        opened: Root.
        folder: Folder to make; it must not hold files yet.
        episodes: Episodes, ``marked`` for the marked ones, or None for the first of each dataset.
        doctor: Whether to look for mistakes with ``convert.doctor`` first, and to write what it finds.
        most_bytes: Most bytes of pictures; an episode with more than its share has only every second, third, ... frame.

    Raises:
        ArgumentError: The folder holds files or is an address, or an episode does not exist.
        FormatError: An index is damaged; a damaged frame alone is left out.
        StreamError: ``convert.doctor`` is not installed, or failed.
        OSError: The folder cannot be written to.
    """
    check_local(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ArgumentError(f"--static {folder}: exists and is not empty; give a new folder")
    chosen = list(dict.fromkeys(_choose(opened, episodes)))
    rows = [opened.episode(*each) for each in chosen]
    findings = _look(opened) if doctor else None
    folder.mkdir(parents=True, exist_ok=True)
    writer = _Writer(opened, folder, chosen)
    share = most_bytes // max(1, len(chosen) + 1)
    for each in rows:
        writer.write_episode(each, share)
    writer.write_overview(findings)
    if findings is not None:
        writer.write_findings(findings, share)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Written(folder / "index.html", len(chosen), size)


def _choose(opened: Opened, episodes: Sequence[Chosen] | str | None) -> list[Chosen]:
    if episodes is None:
        facts = [DatasetFacts.of(opened.dataset(name)) for name in opened.names]
        return [(each.name, each.first_split, 0) for each in facts if each.episodes]
    if not isinstance(episodes, str):
        return list(episodes)
    found = [
        (name, split, number)
        for name in opened.marks.datasets
        for split in opened.dataset(name).shards
        for number in opened.table(name, split).find_ids(opened.marks.ids(name)).values()
    ]
    if not found:
        raise ArgumentError(f"--episodes marked: {opened.marks.path} marks no episode of {opened.catalog.place}")
    return found


def _look(opened: Opened) -> list[Finding]:
    command = doctor_command(opened.catalog.place, list(opened.names))
    done = subprocess.run(command, capture_output=True, check=False)
    return read_findings(opened, read_report(done.stdout, done.stderr))


@dataclass(frozen=True)
class _Writer:
    """Files of a folder; ``chosen`` are the episodes that have a page."""

    opened: Opened
    folder: Path
    chosen: Sequence[Chosen]

    def write_overview(self, findings: Sequence[Finding] | None) -> None:
        facts = [DatasetFacts.of(self.opened.dataset(name)) for name in self.opened.names]
        links = "".join(
            f'<li><a class="plain" href="{_page((name, split, number))}">{name}, {split}, episode {number}</a></li>'
            for name, split, number in self.chosen
        )
        found = "" if findings is None else f'<p><a class="plain" href="findings.html">{len(findings)} findings</a></p>'
        table = overview_html(
            facts,
            self.opened.damaged,
            picture=lambda each: self._path((each.name, each.first_split, 0), 0, 0),
            links=False,
        )
        content = f"<h1>{escape(str(self.opened.catalog.place))}</h1><p class='faint'>{totals(facts)}</p>{found}{table}"
        self._write("index.html", "Overview", f"{content}<h2>Episodes</h2><ul>{links}</ul>")

    def write_findings(self, findings: Sequence[Finding], share: int) -> None:
        left = [share]

        def picture(finding: Finding, place: Place) -> str:
            name = (
                self._path((finding.dataset, finding.split, place.episode or 0), 0, place.step) if left[0] > 0 else ""
            )
            left[0] -= (self.folder / name).stat().st_size if name else 0
            return name

        def address(finding: Finding, place: Place) -> str:
            episode = (finding.dataset, finding.split, place.episode or 0)
            return _page(episode) if episode in self.chosen else ""

        table = findings_html(findings, picture=picture, address=address)
        self._write("findings.html", "Findings", f'<h1>Findings</h1><p><a href="index.html">Overview</a></p>{table}')

    def write_episode(self, tracks: Tracks, share: int) -> None:
        episode = (tracks.dataset.name, tracks.index.split, tracks.episode)
        kept = np.concatenate([track.records[track.records >= 0] for track in tracks.cameras])
        size = int(tracks.index.records.take("num_bytes", np.unique(kept)).sum())
        stride = max(1, math.ceil(size / max(1, share)))

        def frames(camera: int) -> list[Any]:
            """Return the file of each step's frame, or that of the last written one before it."""
            found: list[Any] = [None] * tracks.steps
            steps = tracks.cameras[camera].steps.tolist()
            for place, step in enumerate(steps):
                found[step] = self._picture(episode, camera, steps[place - place % stride])
            return found

        every = f", every {stride}. frame" if stride > 1 else ""
        links = f'<a class="plain" href="index.html">Overview</a><span class="faint">{every}</span>'
        text = static_page(tracks, frames, above=links)
        (self.folder / _page(episode)).write_text(text, "utf-8", errors="backslashreplace")

    def _path(self, episode: Chosen, camera: int, step: int) -> str:
        """Write a frame and return its path from the pages; a hole or a damaged frame has none."""
        found = self._picture(episode, camera, step)
        return found if isinstance(found, str) else ""

    def _picture(self, episode: Chosen, camera: int, step: int) -> str | dict[str, str]:
        """Write a frame and return its path from the pages, or ``{"fault": text}``."""
        name = f"frames/{'/'.join(map(str, episode))}/{camera}/{step}.jpg"
        path = self.folder / name
        if path.exists():
            return name
        try:
            picture = self.opened.episode(*episode).camera(camera).read_picture(step)
        except (ArgumentError, FormatError) as error:
            return {"fault": str(error)}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture)
        return name

    def _write(self, name: str, title: str, content: str) -> None:
        text = _PAGE.format(title=escape(title), style=STYLE, content=content)
        (self.folder / name).write_text(text, "utf-8", errors="backslashreplace")


def _page(episode: Chosen) -> str:
    return f"{'-'.join(map(str, episode))}.html"
