"""Names of folders and files with spaces, accents and dashes, and symbolic links in a dataset."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from convert.run.command import main
from tests.fixtures.datasets.converted_dataset import open_converted
from tests.fixtures.datasets.lerobot_dataset import edit_info
from tests.fixtures.datasets.numbered_lerobot import CAMERA, LENGTHS, write_numbered

NAMES = {"my robot": "my_robot", "été": "t_", "-dash": "dash", "a,b": "a_b", "50%": "50_", "a@b": "a_b"}
"""Names of datasets by those of their folders."""


def convert(dataset: str, out: Path, *more: str) -> int:
    command = ["--datasets", dataset, "--output", str(out), "--num-workers", "1", *more]
    return main([*command, "--layout", "frames", "--image-size", "native"])


def check(out: Path, name: str) -> None:
    assert open_converted(out, name, "3.0.0").manifest.records == sum(LENGTHS)


@pytest.mark.parametrize("folder", NAMES)
def test_a_folder_of_any_name_is_a_dataset(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_numbered(tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    for number, dataset in enumerate((f"lerobot:{tmp_path / folder}", f"lerobot:./{folder}")):
        if "," in folder:
            (tmp_path / "own.yaml").write_text(f'datasets: {{a_b: {{source: "{dataset}"}}}}')
            dataset = "own.yaml"
        assert convert(dataset, tmp_path / f"out{number}") == 0
        check(tmp_path / f"out{number}", NAMES[folder])
    if "," not in folder:
        assert convert(f"lerobot:{folder}", tmp_path / "below", "--source", str(tmp_path)) == 0
        check(tmp_path / "below", NAMES[folder])


def test_files_of_any_name_are_those_of_the_pattern(tmp_path: Path) -> None:
    folder = write_numbered(tmp_path / "robot")
    for top, ending in (("data", "parquet"), (f"videos/{CAMERA}", "mp4")):
        (folder / top / "chunk-000").rename(folder / top / "-chunk 000")
        (folder / top / f"-chunk 000/file-000.{ending}").rename(folder / top / f"-chunk 000/-é 000.{ending}")
    position = "-chunk {chunk_index:03d}/-é {file_index:03d}"
    paths = {"data_path": f"data/{position}.parquet", "video_path": f"videos/{{video_key}}/{position}.mp4"}
    edit_info(folder, lambda info: info.update(paths))
    assert convert(f"lerobot:{folder}", tmp_path / "out") == 0
    check(tmp_path / "out", "robot")


def move(location: str) -> Callable[[Path], Path]:
    """Put a part of a dataset elsewhere, with a symbolic link in its place."""

    def moved(folder: Path) -> Path:
        elsewhere = folder.parent / "elsewhere"
        (folder / location).rename(elsewhere)
        os.symlink(elsewhere, folder / location)
        return folder

    return moved


@pytest.mark.parametrize(
    "location",
    [
        *("", "data", "videos", "meta", "meta/episodes/chunk-000", f"videos/{CAMERA}"),
        *("data/chunk-000/file-000.parquet", "meta/info.json", "meta/episodes/chunk-000/file-000.parquet"),
        f"videos/{CAMERA}/chunk-000/file-000.mp4",
    ],
)
def test_a_part_of_a_dataset_may_be_a_symbolic_link(location: str, tmp_path: Path) -> None:
    folder = write_numbered(tmp_path / "robot")
    if location:
        move(location)(folder)
    else:
        folder.rename(tmp_path / "elsewhere")
        os.symlink(tmp_path / "elsewhere", folder)
    assert convert(f"lerobot:{folder}", tmp_path / "out") == 0
    check(tmp_path / "out", "robot")
