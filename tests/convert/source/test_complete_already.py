"""A conversion is complete already only if nothing changed that its content depends on beside the files of episodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from convert.errors import EXIT_USAGE
from convert.run.command import main
from tests.convert.source.rosbag.bags import LAYOUT, recording, write
from tests.fixtures.arrays.written import write_robomimic
from tests.fixtures.command import tree
from tests.fixtures.datasets.lerobot_dataset import edit_info
from tests.fixtures.datasets.numbered_lerobot import TASKS, write_numbered, write_tasks
from tests.fixtures.datasets.own_files import write_files
from tests.fixtures.faults.conversion_damage import edit_manifest


class Made(NamedTuple):
    """Arguments of ``convert.run``, and what changes the content of episodes without changing their files."""

    arguments: list[str]
    change: Callable[[], object]


def declared(folder: Path, source: str, layout: dict[str, Any], **changes: Any) -> Made:
    """A dataset that YAML describes; the change is one of its layout."""
    file = folder / "own.yaml"

    def save(content: dict[str, Any]) -> None:
        file.write_text(yaml.safe_dump({"datasets": {"own": {"source": source, "layout": content}}}))

    save(layout)
    return Made(["--datasets", str(file)], lambda: save({**layout, **changes}))


def replaced(path: Path, before: str, after: str) -> Callable[[], object]:
    """A change of a text file."""
    return lambda: path.write_text(path.read_text().replace(before, after))


def bag_layout(folder: Path) -> Made:
    path = write(folder / "a", "mcap", recording("mcap"))
    return declared(folder, f"rosbag:{path}", LAYOUT, rate=5)


def bag_table(folder: Path) -> Made:
    write(folder / "bags/a", "mcap", recording("mcap"))
    table = folder / "bags/cuts.csv"
    table.write_text("file,start,stop,score\na,0,1.5,3\n")
    layout = {**LAYOUT, "episodes": {"csv": "cuts.csv"}}
    return Made(declared(folder, f"rosbag:{folder / 'bags'}", layout).arguments, replaced(table, "1.5,3", "1.5,4"))


def array_layout(folder: Path) -> Made:
    write_robomimic(folder / "lift.hdf5", lengths=(5, 3))
    return declared(folder, f"robomimic:{folder / 'lift.hdf5'}", {"language": {"text": "a"}}, language={"text": "b"})


def function_code(folder: Path) -> Made:
    converted = write_files(folder, files=1, episodes=1)
    return Made(converted, replaced(folder / "reader.py", "number % 2 == 0", "number % 2 == 1"))


def function_arguments(folder: Path) -> Made:
    arguments = write_files(folder, files=1, episodes=1)
    converted = declared(folder, arguments[1], {"only": 1}, only=2)
    return Made([*converted.arguments, *arguments[2:]], converted.change)


def lerobot_tasks(folder: Path) -> Made:
    write_numbered(folder / "robot", lengths=(4,))
    texts = [{"task_index": number, "task": text.upper()} for number, text in enumerate(TASKS)]
    return Made(["--datasets", f"lerobot:{folder / 'robot'}"], lambda: write_tasks(folder / "robot", texts))


def lerobot_rate(folder: Path) -> Made:
    write_numbered(folder / "robot", lengths=(4,))
    change = partial(edit_info, folder / "robot", lambda info: info.update(fps=20))
    return Made(["--datasets", f"lerobot:{folder / 'robot'}"], change)


def list_of_episodes(folder: Path) -> Made:
    write_numbered(folder / "robot", lengths=(4, 5))
    file = folder / "list.json"
    file.write_text(json.dumps({"robot": ["*__0"]}))
    arguments = ["--datasets", f"lerobot:{folder / 'robot'}", "--episodes", str(file)]
    return Made(arguments, replaced(file, "__0", "__1"))


KINDS = [bag_layout, bag_table, array_layout, function_code, function_arguments, lerobot_tasks, lerobot_rate]


@pytest.mark.parametrize("write_dataset", [*KINDS, list_of_episodes], ids=lambda converted: converted.__name__)
def test_a_change_beside_the_files_of_episodes_is_another_conversion(
    write_dataset: Callable[[Path], Made], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    converted, out = write_dataset(tmp_path / "source"), tmp_path / "out"
    command = [*converted.arguments, "--output", str(out), "--num-workers", "1", "--layout", "frames"]
    assert main(command) == main(command) == 0
    assert "1 of 1 were complete already" in capsys.readouterr().out
    before = tree(out)
    converted.change()
    assert main(command) == EXIT_USAGE
    assert "se another --output" in capsys.readouterr().err
    assert tree(out) == before
    assert main([*command, "--overwrite"]) == 0


@pytest.mark.parametrize("is_complete", [False, True])
def test_a_conversion_with_episode_ids_of_another_form_is_not_continued(
    tmp_path: Path, is_complete: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_numbered(tmp_path / "robot")
    command = ["--datasets", f"lerobot:{folder}", "--output", str(tmp_path / "out"), "--num-workers", "1"]
    assert main(command) == 0
    output = tmp_path / "out" / "robot" / "3.0.0"
    edit_manifest(output, lambda manifest: manifest["parameters"].pop("episode_ids"))
    if not is_complete:
        manifest = json.loads((output / "dataset.json").read_text())
        started = manifest["parameters"] | {"source": manifest["source"]["fingerprint"]}
        (output / "dataset.json").unlink()
        (output / ".convert").mkdir()
        (output / ".convert" / "parameters.json").write_text(json.dumps(started))
    before = tree(tmp_path / "out")
    assert main(command) == EXIT_USAGE
    assert "other parameters: episode_ids was None, now 'source_file__episode'." in capsys.readouterr().err
    assert tree(tmp_path / "out") == before
