"""Episodes and ranges of steps that a caller chooses, against plain loops over the index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stream import Select, make_loader
from stream.base.errors import ArgumentError, StateError
from stream.loader.loader import Loader
from stream.loader.opening import load_loader

BRIDGE = {"bridge": 1}
OPENPI = ("episode_metadata/recording_folderpath", "episode_metadata/file_path")


def samples(loader: Loader) -> list[tuple[str, int]]:
    """Return episode and step of each sample of an epoch of a loader of one dataset, sorted."""
    (size,) = loader.sizes.values()
    refs = [ref for step in range(-(-size // loader.batch_size)) for ref in loader.describe(step)]
    return sorted((ref.episode_id, ref.step) for ref in refs[:size])


def openpi_keys(loader: Loader) -> dict[str, str]:
    """Return openpi's key of each episode of a loader of one split, by id."""
    (table,) = [split.episodes.arrow() for split in loader.data.sample_index.splits]
    rows = table.select(["episode_id", *OPENPI]).to_pylist()
    return {row["episode_id"]: "--".join(row[name] for name in OPENPI) for row in rows}


@pytest.fixture(params=["pairs", "frames"])
def root(request: pytest.FixtureRequest) -> Path:
    chosen: Path = request.getfixturevalue("oxe_root" if request.param == "pairs" else "frames_root")
    return chosen


@pytest.fixture
def every(root: Path) -> list[tuple[str, int]]:
    return samples(make_loader(root, BRIDGE, batch_size=4))


@pytest.mark.parametrize("verb", ["keep", "leave_out"])
@pytest.mark.parametrize("form", ["argument", "member", "file", "file of ids", "yaml"])
def test_listed_episodes_are_kept_or_left_out(
    root: Path, every: list[tuple[str, int]], verb: str, form: str, tmp_path: Path
) -> None:
    ids = sorted({name for name, _ in every})[1:3]
    value: Any = ids if verb == "keep" else {"leave_out": ids}
    mixture: Any = BRIDGE
    episodes: Any = None
    id_file = tmp_path / "ids.txt"
    id_file.write_text("\n".join(ids) + "\n")
    if form == "argument":
        episodes = {"bridge": value}
    elif form == "file":
        episodes = tmp_path / "episodes.json"
        episodes.write_text(json.dumps({"bridge": value}))
    elif form == "file of ids":
        episodes = {"bridge": {verb: str(id_file)}}
    elif form == "member":
        mixture = {"bridge": {"select": {"episodes": value}}}
    else:
        entry = id_file if verb == "keep" else f"{{{verb}: {id_file}}}"
        mixture = tmp_path / "soup.yaml"
        mixture.write_text(f"members: {{bridge: {{split: train, select: {{episodes: {entry}}}}}}}")
    loader = make_loader(root, mixture, batch_size=4, select=Select(episodes=episodes))
    expected = [sample for sample in every if (sample[0] in ids) == (verb == "keep")]
    assert samples(loader) == expected
    assert loader.stats()["left_out"]["bridge"]["episodes"] == len(every) - len(expected)


def test_ranges_of_steps_are_kept_and_other_episodes_left_out(root: Path, every: list[tuple[str, int]]) -> None:
    first, second = sorted({name for name, _ in every})[:2]
    ranges = {first: [[3, 5], [0, 1]], second: [], "elsewhere": [[0, 9]]}
    loader = make_loader(root, BRIDGE, batch_size=2, select=Select(keep_ranges={"bridge": ranges}))
    assert samples(loader) == [sample for sample in every if sample in {(first, 0), (first, 3), (first, 4)}]
    overview = loader.describe()["bridge"]
    assert overview["unknown_episodes"] == {"keep_ranges": 1}
    assert overview["samples"] + overview["left_out"]["keep_ranges"] == len(every)


def test_an_episode_that_is_named_in_several_ways_keeps_the_ranges_of_all(root: Path) -> None:
    every = samples(make_loader(root, {"droid": 1}, batch_size=4))
    loader = make_loader(root, {"droid": 1}, batch_size=2)
    first = every[0][0]
    ranges = {first: [[0, 1]], f"{first[:-1]}*": [[2, 3]], openpi_keys(loader)[first]: [[4, 5]]}
    loader = make_loader(root, {"droid": 1}, batch_size=1, select=Select(keep_ranges={"droid": ranges}))
    assert {step for episode, step in samples(loader) if episode == first} == {0, 2, 4}
    assert loader.describe()["droid"]["unknown_episodes"] == {}
    named = make_loader(root, {"droid": 1}, batch_size=1, select=Select(episodes={"droid": list(ranges)}))
    assert named.describe()["droid"]["unknown_episodes"] == {}


def test_choices_add_up_and_are_counted_by_reason(root: Path, every: list[tuple[str, int]]) -> None:
    names = sorted({name for name, _ in every})
    loader = make_loader(
        root,
        {"bridge": {"select": {"where": [("step", ">", 0)]}}},
        batch_size=2,
        select=Select(
            where=[("step", "<", 4)],
            episodes={"bridge": {"leave_out": names[:1]}},
            keep_ranges={"bridge": {name: [[2, 9]] for name in names}},
        ),
    )
    assert samples(loader) == [(name, step) for name, step in every if name != names[0] and 2 <= step < 4]
    counts = dict(loader.stats()["left_out"]["bridge"])
    counts.pop("window", 0)
    by_filter = [sample for sample in every if not 0 < sample[1] < 4]
    by_episode = [sample for sample in every if sample not in by_filter and sample[0] == names[0]]
    assert counts == {
        "where": len(by_filter),
        "episodes": len(by_episode),
        "keep_ranges": len(every) - len(by_filter) - len(by_episode) - len(samples(loader)),
    }


def test_choices_survive_saving_and_a_changed_file_is_refused(root: Path, tmp_path: Path) -> None:
    every = samples(make_loader(root, BRIDGE, batch_size=4))
    file = tmp_path / "ranges.json"
    file.write_text(json.dumps({every[0][0]: [[0, 3]]}))
    loader = make_loader(root, BRIDGE, batch_size=2, select=Select(keep_ranges={"bridge": file}))
    loader.save(tmp_path / "loader.json")
    reloaded = load_loader(tmp_path / "loader.json")
    assert samples(reloaded) == samples(loader) != every
    assert reloaded.step_of(loader.state_at(7)) == 7
    file.write_text(json.dumps({every[0][0]: [[0, 2]]}))
    with pytest.raises(StateError, match=r"keep_ranges: \['ranges of 1 episodes \(\w+\)'\] was \['ranges of 1 "):
        load_loader(tmp_path / "loader.json")


def test_the_ranges_that_openpi_publishes_are_read(root: Path, tmp_path: Path) -> None:
    loader = make_loader(root, {"droid": 1}, batch_size=4)
    every = samples(loader)
    keys = openpi_keys(loader)
    first, *_, last = sorted(keys)
    published = {keys[first]: [[1, 3], [4, 5]], keys[last]: [[0, 1]], "/raw/1/recordings--/raw/1/t.h5": [[0, 9]]}
    (tmp_path / "ranges.json").write_text(json.dumps(published))
    kept = samples(
        make_loader(root, {"droid": {"select": {"keep_ranges": str(tmp_path / "ranges.json")}}}, batch_size=1)
    )
    assert kept == [sample for sample in every if sample in {(first, 1), (first, 2), (first, 4), (last, 0)}]
    assert len(kept) >= 2


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"episodes": 5}, "episodes=5; expected a list, a mapping of members, or a JSON file of one"),
    ({"episodes": ["a"]}, "dataset bridge has none of the 1 episodes, such as 'a'"),
    ({"episodes": {}}, "episodes={} names neither a member nor an episode; give None"),
    ({"keep_ranges": {}}, "keep_ranges={} names neither a member nor an episode; give None"),
    ({"keep_ranges": {"*": []}}, "all samples are left out"),
    ({"episodes": {"bridge": {"drop": ["a"]}}}, "episodes: bridge: keys .*; expected `keep` or `leave_out`"),
    ({"episodes": {"bridge": [1, 2]}}, "episodes: bridge: .*expected a list of texts, the ids of episodes"),
    ({"episodes": {"brigde": ["a"]}}, "episodes: no member 'brigde'; did you mean 'bridge'"),
    ({"episodes": {"bridge": ["bridge%*"]}}, "has none of the 1 episodes"),
    ({"keep_ranges": {"bridge": {"bridge-train.tfrecord______*": [[0, 5]]}}}, "has none of the 1 episodes"),
    ({"episodes": {"bridge": ["a", "b"]}}, "has none of the 2 episodes, such as 'a'; its ids look like '.*__0'"),
    ({"episodes": "/nowhere.json"}, "/nowhere.json: cannot be read .No such file"),
    ({"keep_ranges": {"bridge": {"a": [[0, 4], [3, 5]]}}}, r"a: \[0, 4\) goes beyond 3, where the next range starts"),
    ({"keep_ranges": {"bridge": {"a": [[4, 4]]}}}, r"a: \[4, 4\) has no step"),
    ({"keep_ranges": {"bridge": {"a": [4, 5]}}}, r"a: \[4, 5\]; expected a list of \[start, stop\) in steps"),
    ({"keep_ranges": {"bridge": {"a": [[-1, 5]]}}}, "start"),
    ({"keep_ranges": {"bridge": ["a"]}}, "expected a mapping of episodes"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=str)
def test_a_wrong_choice_is_one_clear_error(arguments: dict[str, Any], message: str, oxe_root: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        make_loader(oxe_root, BRIDGE, batch_size=4, select=Select(**arguments))
    for entry, member_message in (
        ({"episodes": []}, "expected a list of texts"),
        ({"keep_ranges": {}}, "names neither a member nor an episode"),
        ({"keep_ranges": {"*": []}}, "all samples are left out"),
    ):
        with pytest.raises(ArgumentError, match=member_message):
            make_loader(oxe_root, {"bridge": {"select": entry}}, batch_size=4)


def test_a_state_is_bound_to_the_actions_that_must_exist(root: Path) -> None:
    state = make_loader(root, BRIDGE, batch_size=4, select=Select(min_future_actions=8)).state_at(3)
    with pytest.raises(StateError, match=r"that min_future_actions and .* leave out: \[0, 0\] was \[0, 7\]"):
        make_loader(root, BRIDGE, batch_size=4).step_of(state)


def test_more_actions_than_any_episode_has_are_said(root: Path) -> None:
    with pytest.raises(ArgumentError, match=r"has 4 episodes, but none has the 50 steps that its actions take"):
        make_loader(root, BRIDGE, batch_size=4, select=Select(min_future_actions=50))
    for count in (0, -1, 1.5):
        with pytest.raises(ArgumentError, match="min_future_actions="):
            make_loader(root, BRIDGE, batch_size=4, select=Select(min_future_actions=count))  # type: ignore[arg-type]
