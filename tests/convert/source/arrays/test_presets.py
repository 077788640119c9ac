"""Datasets of each format, as its repository writes them, convert: every number and frame is the source's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from convert.errors import ConfigError
from convert.registry.dataset import DatasetSpec
from convert.source.arrays.layout import read_layout
from convert.source.arrays.preset import load_preset, preset_names
from convert.source.kinds import find_source, kinds, recognise
from stream import make_loader
from tests.fixtures.arrays import written as files
from tests.fixtures.arrays.converted import assert_equal, config, convert, episodes, opened


def test_robomimic_gives_its_filter_keys_as_splits_and_demos_in_natural_order(tmp_path: Path) -> None:
    lengths = [3, 2, 4, 2, 3, 2, 2, 3, 2, 2, 5]
    masks = {"train": [0, 1, 2, 3, 4, 5, 6, 10], "valid": [7, 8, 9], "20_percent": [0, 7], "20_percent_train": [0]}
    written = files.write_robomimic(tmp_path / "lift.hdf5", lengths=lengths, masks=masks, compression="gzip")
    assert convert(f"robomimic:{tmp_path / 'lift.hdf5'}", tmp_path / "out") == 0
    train, valid = (episodes(opened(tmp_path / "out", "lift"), split) for split in ("train", "valid"))
    assert_equal(train, [written[number] for number in masks["train"]])
    assert_equal(valid, [written[number] for number in masks["valid"]])
    assert [item["episode_name"] for item in train] == [f"demo_{number}" for number in masks["train"]]
    assert [item["filter_keys"] for item in valid] == ["20_percent, valid", "valid", "valid"]


def test_filter_keys_that_are_no_partition_leave_all_in_train_with_a_remark(tmp_path: Path) -> None:
    for name, masks in (
        ("overlap", {"better": [0, 1], "worse": [1, 2]}),
        ("gap", {"train": [0], "valid": [1]}),
        ("twice", {"train": [0, 1, 2], "valid": [2]}),
    ):
        files.write_robomimic(tmp_path / f"{name}.hdf5", masks=masks)
        source = find_source(f"robomimic:{tmp_path / name}.hdf5", [], {})
        assert source.splits == {"train": (3,)}
        assert "share episodes or leave some out, so all are train" in source.remarks[-1]
    files.write_robomimic(tmp_path / "other.hdf5", masks={"better": [0, 1], "worse": [2]})
    assert find_source(f"robomimic:{tmp_path / 'other.hdf5'}", [], {}).splits == {"better": (2,), "worse": (1,)}


def test_libero_is_turned_upright_and_its_instruction_is_of_problem_info_or_of_the_files_name(tmp_path: Path) -> None:
    folder = tmp_path / "libero_90"
    first = files.write_libero(folder / "KITCHEN_SCENE3_open_the_drawer_demo.hdf5", instruction="open the top drawer")
    second = files.write_libero(folder / "LIVING_ROOM_SCENE10_pick_up_the_red_mug_demo.hdf5", instruction=None)
    third = files.write_libero(folder / "push_the_plate_demo.hdf5", instruction=None)
    assert convert(f"libero:{folder}", tmp_path / "out") == 0
    converted = opened(tmp_path / "out", "libero_90")
    result = episodes(converted)
    assert_equal(result, [*first, *second, *third])
    texts = ["open the top drawer"] * 3 + ["pick up the red mug"] * 3 + ["push the plate"] * 3
    assert [item["language"] for item in result] == texts
    assert converted.manifest.spec["control_frequency"] == 20
    batch = make_loader(tmp_path / "out", "libero_90", batch_size=2).batch_at(0)
    assert batch["action"].shape[-1] == 7 and batch["frames"].shape[-3:] == (files.HEIGHT, files.WIDTH, 3)


@pytest.mark.parametrize(("compress", "arms"), [(False, 2), (True, 1), (False, 3)])
def test_aloha_shows_true_colours_raw_and_from_padded_rows_for_any_number_of_arms(
    tmp_path: Path, compress: bool, arms: int
) -> None:
    cameras = ("cam_high", "cam_left_wrist", "cam_low", "cam_right_wrist")
    written = files.write_aloha(tmp_path / "pour", compress=compress, arms=arms, cameras=cameras)
    assert convert(f"aloha:{tmp_path / 'pour'}", tmp_path / "out") == 0
    converted = opened(tmp_path / "out", "pour")
    assert_equal(episodes(converted), written)
    roles = {name: camera["role"] for name, camera in converted.manifest.spec["cameras"].items()}
    assert roles == dict(zip(cameras, ("primary", "wrist", "secondary", "wrist"), strict=True))
    assert sum(part["dims"] for part in converted.manifest.spec["action"]) == 7 * arms


def test_ordinary_jpeg_pass_without_their_padding_and_keys_of_an_entry_go_before_the_preset(tmp_path: Path) -> None:
    files.write_aloha(tmp_path / "pour", compress=True)
    cameras = {name: {"channels": "rgb"} for name in ("cam_high", "cam_low")}
    layout = {"language": {"text": "pour the tea"}}
    text = json.dumps({"source": f"aloha:{tmp_path / 'pour'}", "cameras": cameras, "layout": layout})
    assert convert("pour", tmp_path / "out", *config(tmp_path / "own.yaml", "pour", text)) == 0
    converted = episodes(opened(tmp_path / "out", "pour"))
    assert {item["language"] for item in converted} == {"pour the tea"}
    shown = [data for item in converted for data in item["frames"]["cam_low"]]
    pictures = [scene for number in range(3) for scene in files.scene(4 + number, seed=10 * number + 1)]
    assert shown == [files.jpeg(picture, swapped=True) for picture in pictures]


def test_robomind_passes_its_rows_byte_for_byte_and_tells_what_is_no_step(tmp_path: Path) -> None:
    written = files.write_robomind(tmp_path / "benchmark")
    source = find_source(f"robomind:{tmp_path / 'benchmark'}", [], {})
    assert source.remarks[-1] == "arrays that are no steps: sim_time_seq (20 values, not 5)"
    assert convert(f"robomind:{tmp_path / 'benchmark'}", tmp_path / "out") == 0
    converted = opened(tmp_path / "out", "benchmark")
    train, val = episodes(converted), episodes(converted, "val")
    assert_equal([*train, *val], written, exact=True)
    assert {item["language"] for item in (*train, *val)} == {"close trash bin"}
    assert [len(part["select"]) for part in converted.manifest.spec["state"]] == [7, 1]


@pytest.mark.parametrize(("name", "zarr_format"), [("a.zarr", 2), ("a.zarr", 3), ("a.zarr.zip", 2), ("a.zarr.zip", 3)])
def test_diffusion_policy_cuts_episodes_at_their_ends_and_rounds_float_pictures(
    tmp_path: Path, name: str, zarr_format: int
) -> None:
    written = files.write_replay(tmp_path / name, zarr_format=zarr_format)
    assert convert(f"diffusion_policy:{tmp_path / name}", tmp_path / "out") == 0
    converted = opened(tmp_path / "out", "a")
    assert_equal(episodes(converted), written)
    assert converted.manifest.spec["action"][0]["path"] == "action"


def test_umi_reads_chunks_of_jpeg_xl_in_a_zip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = files.write_umi(tmp_path / "cup.zarr.zip")
    assert convert(f"umi:{tmp_path / 'cup.zarr.zip'}", tmp_path / "out") == 0
    assert "names no action" not in capsys.readouterr().err  # poses of the state are its actions
    assert_equal(episodes(opened(tmp_path / "out", "cup")), written)


def test_a_preset_is_a_kind_and_its_entry_and_layout_are_valid() -> None:
    expected = ["aloha", "diffusion_policy", "libero", "robomimic", "robomind", "umi"]
    assert preset_names() == expected
    assert set(expected) < set(kinds())
    for name in expected:
        preset = load_preset(name)
        read_layout(preset.layout)
        parts = {v: [{"dims": 1, **p} for p in preset.entry.get(v, ())] for v in ("action", "state")}
        for item in (part for result in parts.values() for part in result):
            of = item.pop("of", 1)
            item["dims"] = len(item["select"]) if "select" in item else of
        camera = {"path": "c", "role": "primary"}
        complete = {"tfds_name": name, "version": "1.0.0", "description": "d", "cameras": {"c": camera}}
        spec = DatasetSpec.model_validate({**complete, **preset.entry, **parts, "name": name})
        assert spec.quirks and all(" [" in quirk or "folder" in quirk for quirk in spec.quirks)
        for part in (*spec.action, *spec.state):
            missing = [fact for fact in part.facts if fact not in {**spec.sources, **part.sources}]
            assert not missing, (name, part.path, missing)


def test_a_plain_path_is_recognised_by_the_marks_of_a_format(tmp_path: Path) -> None:
    files.write_robomimic(tmp_path / "lift.hdf5")
    files.write_libero(tmp_path / "libero" / "open_demo.hdf5", instruction="open")
    files.write_aloha(tmp_path / "aloha", compress=True)
    files.write_robomind(tmp_path / "robomind")
    files.write_replay(tmp_path / "pusht.zarr")
    files.write_umi(tmp_path / "cup.zarr.zip")
    expected = {"lift.hdf5": "robomimic", "libero": "libero", "aloha": "aloha", "robomind": "robomind"}
    expected |= {"pusht.zarr": "diffusion_policy", "cup.zarr.zip": "umi"}
    assert {name: recognise(str(tmp_path / name)) for name in expected} == expected


def test_hdf5_of_no_preset_is_told_as_that_with_the_command_that_describes_it(tmp_path: Path) -> None:
    with files.h5py.File(tmp_path / "own.hdf5", "w") as file:
        file["x"] = np.zeros((3, 2))
    with pytest.raises(ConfigError, match=r"own.hdf5: holds HDF5 in the layout of none of aloha, .*draft arrays:/"):
        recognise(str(tmp_path / "own.hdf5"))
    (tmp_path / "broken.hdf5").write_bytes((tmp_path / "own.hdf5").read_bytes()[:600])
    with pytest.raises(ConfigError, match=r"broken.hdf5: looks like a file of arrays, but cannot be read .*truncated"):
        recognise(str(tmp_path / "broken.hdf5"))
