"""Patterns of episodes: ``*`` stands for any text, and nothing else does, in a conversion as in a loader."""

from __future__ import annotations

from pathlib import Path

import pytest

from stream.format.episode_list import EpisodeList
from stream.sample.choices import EpisodeChoice
from tests.stream.index_root import change_table, open_split, with_values, write_dataset

IDS = ["lab/run[1]/0", "lab/run1/0", "lab/a?c", "lab/abc", "50%", "500", "a_b", "axb", "a\\b", "two\nlines", ""]
PATTERNS = ["*run[1]*", "lab/a?*", "*50%", "a_*", "a\\*", "two*lines", "*", "lab/*0", "**abc", "*[!x]*"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder_path = write_dataset(tmp_path_factory.mktemp("episodes"), "demo", {"train": [[4] * len(IDS)]})
    change_table(folder_path, "episodes", lambda table: with_values(table, "episode_id", IDS))
    return folder_path


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_conversion_and_a_loader_choose_the_same_episodes(folder: Path, pattern: str, keeps: bool) -> None:
    listed = EpisodeList((pattern,), keeps)
    index = open_split(folder)
    rows = slice(0, len(index.records))
    kept = EpisodeChoice(listed).select(index, rows, "records")
    episodes = index.records.array("episode")[rows]
    chosen = [IDS[number] for number in range(len(IDS)) if kept[episodes == number].all()]
    assert chosen == [name for name in IDS if listed.chooses([name])]
    start, _, end = pattern.partition("*")
    if "*" not in end:
        like = [n for n in IDS if n.startswith(start) and n.endswith(end) and len(n) >= len(start) + len(end)]
        assert chosen == [name for name in IDS if (name in like) == keeps]
