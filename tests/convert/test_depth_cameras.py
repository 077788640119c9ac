"""Depth cameras of an RLDS dataset, from its records to windows: bitwise what the source says, and refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import simplejpeg
import tensorflow_datasets as tfds

from convert.doctor.command import main as doctor
from convert.errors import EXIT_DAMAGED, EXIT_USAGE
from convert.run.command import main
from convert.verify.command import main as verify
from pairstream.export.command import main as export
from pairstream.replay.batch_html import rows_html
from pairstream.view.tracks import open_tracks
from stream import Frames, make_loader
from stream.adapters import lerobot as lerobot_adapter
from stream.base.depth_colours import colour_depth
from stream.base.errors import ArgumentError, RecordError
from stream.format.catalog import Catalog
from stream.format.index import open_index
from tests.fixtures.command import flip, tree
from tests.fixtures.datasets.rlds_dataset import RldsDataset, demo_episode, demo_features, png, write_dataset
from tests.fixtures.faults.conversion_damage import edit_manifest

Capture = pytest.CaptureFixture[str]
LENGTHS = (7, 4, 9)
CAMERAS: dict[str, dict[str, Any]] = {
    "far": {"path": "far", "kind": "depth", "role": "primary", "unit": "m"},
    "wide": {"path": "observation/image", "role": "primary", "storage": "jpeg", "shape": [24, 32, 3]},
    "near": {"path": "near", "kind": "depth", "role": "wrist", "unit": "mm"},
    "raw": {"path": "raw", "kind": "depth", "role": "other", "scale": 0.5},
    "packed": {"path": "packed", "kind": "depth", "role": "other", "unit": "m"},
    "bits": {"path": "bits", "kind": "depth", "role": "other", "unit": "m"},
}
"""Floats of metres, a PNG of 16 bits, integers of half millimetres, compressed floats, and floats in a PNG."""
DEPTH = ["bits", "far", "near", "packed", "raw"]
"""The cameras of depth in the order of the registry."""
FOLDER = Path("demo/1.0.0")


def depth(episode: int, step: int, camera: str, shape: tuple[int, int] = (24, 32)) -> np.ndarray:
    """Millimetres of a step, a fifth of them not measured."""
    rng = np.random.default_rng([episode, step, *camera.encode()])
    return np.where(rng.random(shape) < 0.2, 0, rng.integers(1, 30_000, shape)).astype(np.uint16)


def features() -> dict[str, Any]:
    return demo_features(
        far=tfds.features.Tensor(shape=(24, 32, 1), dtype=np.float32),
        near=tfds.features.Image(shape=(None, None, 1), dtype=np.uint16, encoding_format="png"),
        raw=tfds.features.Tensor(shape=(12, 16), dtype=np.uint16),
        packed=tfds.features.Tensor(shape=(12, 16), dtype=np.float32, encoding="zlib"),
        bits=tfds.features.Image(shape=(24, 32, 1), dtype=np.float32),
    )


def metres(values: np.ndarray) -> np.ndarray:
    """The metres that a sensor gives, NaN where it measured nothing."""
    return np.where(values, values / 1000, np.nan).astype(np.float32)


def make_episode(number: int, steps: int) -> dict[str, Any]:
    created = demo_episode(steps, seed=number)
    for path, step in enumerate(created["steps"]):
        step["far"] = metres(depth(number, path, "far"))[:, :, None]
        step["near"] = png(depth(number, path, "near"))
        step["raw"] = 2 * depth(number, path, "raw", (12, 16))
        step["packed"] = metres(depth(number, path, "packed", (12, 16)))
        step["bits"] = metres(depth(number, path, "bits"))[:, :, None]
    return created


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> RldsDataset:
    """Three episodes in two shards; the depth ``near`` of step 2 of episode 0 is damaged."""
    created = [make_episode(number, steps) for number, steps in enumerate(LENGTHS)]
    created[0]["steps"][2]["near"] = png(depth(0, 2, "near"))[:-40]
    return write_dataset(
        tmp_path_factory.mktemp("source"), features=features(), splits={"train": [created[:2], created[2:]]}
    )


def arguments(dataset: RldsDataset, output: Path, *more: str, **fields: Any) -> list[str]:
    arguments = ["--datasets", "demo", "--source", str(dataset.root), "--output", str(output), "--num-workers", "1"]
    registry = ["--config", str(dataset.registry(**{"cameras": CAMERAS, **fields}))]
    return [*arguments, *registry, "--layout", "frames", "--image-size", "native", *more]


@pytest.fixture(scope="module")
def root(dataset: RldsDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("depth")
    assert main(arguments(dataset, output, "--cameras", "all,depth")) == EXIT_DAMAGED
    return output


def manifest(root: Path) -> dict[str, Any]:
    actual: dict[str, Any] = json.loads((root / FOLDER / "dataset.json").read_text())
    return actual


def open_loader(root: Path, frames: list[int | str] | None = None, num_workers: int = 0, **options: Any) -> Any:
    common: dict[str, Any] = {"batch_size": 8, "split": "train", "num_workers": num_workers, "shuffle": "none"}
    return make_loader(root, "demo", frames=Frames(frames, **options), **common)


def check_window(
    batch: dict[str, Any], key: str, camera: str, frames: list[int | str], shape: tuple[int, int] = (24, 32)
) -> None:
    """Compare the depth of a batch and its mask with the source, bitwise."""
    actual, mask = batch[key], batch[key.replace("depth", "depth_mask", 1)]
    assert (actual.dtype, actual.shape[1:]) == (np.uint16, (len(frames), *shape))
    for row, (episode, t) in enumerate(zip(batch["episode"].tolist(), batch["step"].tolist(), strict=True)):
        last = LENGTHS[episode] - 1
        for path, distance in enumerate(frames):
            expected = last if isinstance(distance, str) else t + distance
            step = min(max(expected, 0), last)
            is_hole = camera == "near" and (episode, step) == (0, 2)
            assert batch["frame_step"][row, path] == step
            assert mask[row, path] == (expected == step and not is_hole)
            shown = 0 * depth(0, 0, camera, shape) if is_hole else depth(episode, step, camera, shape)
            np.testing.assert_array_equal(actual[row, path], shown)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_windows_of_colour_and_depth_are_those_of_the_source(root: Path, num_workers: int) -> None:
    cameras = ["primary", "depth/primary", "near", "raw", "packed", "bits"]
    frames: list[int | str] = [-1, 0, 2, "last"]
    loader = open_loader(root, frames, num_workers, cameras=cameras, edges="repeat")
    batches = iter(loader)
    for _ in range(3):
        batch = next(batches)
        assert batch["frames/primary"].shape == (8, 4, 24, 32, 3)
        check_window(batch, "depth/primary", "far", frames)
        check_window(batch, "depth/near", "near", frames)
        check_window(batch, "depth/raw", "raw", frames, (12, 16))
        check_window(batch, "depth/packed", "packed", frames, (12, 16))
        check_window(batch, "depth/bits", "bits", frames)
        np.testing.assert_array_equal(batch["depth_mask/primary"], batch["frames_mask/primary"])
    batches.close()


def test_one_depth_camera_has_the_key_depth_and_a_sample_needs_no_hole(root: Path) -> None:
    loader = open_loader(root, [0, 1], cameras="near")
    batch = loader.batch_at(0)
    assert not [key for key in batch if key.startswith("frames")]
    check_window(batch, "depth", "near", [0, 1])
    # Each t has a t + 1, and two of them would meet the hole.
    assert loader.sizes == {"demo": sum(LENGTHS) - 3 - 2}


def test_an_episode_has_its_depth(root: Path) -> None:
    cameras = open_loader(root, cameras=["wide", "near"]).episode("demo", 0).cameras
    assert cameras["depth/near"].steps.tolist() == [0, 1, 3, 4, 5, 6]
    for step, actual in zip(cameras["depth/near"].steps.tolist(), cameras["depth/near"].frames, strict=True):
        np.testing.assert_array_equal(actual, depth(0, step, "near"))


def test_a_dataset_without_a_depth_camera_has_zeros_and_no_mask(
    dataset: RldsDataset, root: Path, tmp_path: Path
) -> None:
    assert main(arguments(dataset, tmp_path)) == 0
    members = {"with": {"dataset": "demo"}, "without": {"dataset": "demo", "root": str(tmp_path)}}
    loader = make_loader(
        root, members, batch_size=8, frames=Frames([0], cameras=["primary", "depth/primary"]), split="train"
    )
    batch = loader.batch_at(0)
    lacks = batch["dataset"] == 1
    assert lacks.any()
    assert not batch["depth/primary"][lacks].any()
    np.testing.assert_array_equal(batch["depth_mask/primary"][:, 0], ~lacks)


def test_depth_is_stored_after_colour_and_is_no_column(root: Path) -> None:
    actual = manifest(root)
    assert actual["parameters"]["cameras"] == ["wide", *DEPTH]
    assert actual["parameters"]["depth"] == {"far": 1000, "near": 1, "raw": 0.5, "packed": 1000, "bits": 1000}
    assert actual["parameters"]["channels"] == {"wide": "rgb"}
    assert actual["left_out"] == {"corrupt_frame": 1}
    steps = pa.ipc.open_file(root / FOLDER / "train" / "steps.arrow").schema.names
    assert {"far", "near", "raw", "packed", "bits"}.isdisjoint(steps)


def test_depth_is_left_out_by_default(dataset: RldsDataset, tmp_path: Path) -> None:
    for number, chosen in enumerate(([], ["--cameras", "all"], ["--cameras", "primary"])):
        output = tmp_path / str(number)
        assert main(arguments(dataset, output, *chosen)) == 0
        assert manifest(output)["parameters"]["cameras"] == ["wide"]
        assert "depth" not in manifest(output)["parameters"]


@pytest.mark.parametrize(
    ("chosen", "cameras"), [("depth", DEPTH), ("depth/wrist", ["near"]), ("raw,wide", ["wide", "raw"])]
)
def test_depth_is_chosen_by_kind_role_or_name(
    dataset: RldsDataset, tmp_path: Path, chosen: str, cameras: list[str]
) -> None:
    main(arguments(dataset, tmp_path, "--cameras", chosen, "--episodes", "train[1:]"))
    assert manifest(tmp_path)["parameters"]["cameras"] == cameras
    loader = open_loader(tmp_path, [0])
    first = "wide" if "wide" in cameras else cameras[0]
    assert ("frames" if first == "wide" else "depth") in loader.batch_at(0)


def test_sizes_are_chosen_for_depth_alone_and_take_the_nearest_value(dataset: RldsDataset, tmp_path: Path) -> None:
    more = ("--cameras", "wide,depth", "--image-size", "48x64,depth:12x16,raw:6x8", "--episodes", "train[1:]")
    assert main(arguments(dataset, tmp_path, *more)) == 0
    batch = open_loader(tmp_path, [0], cameras=["wide", "far", "raw"]).batch_at(0)
    assert batch["frames/wide"].shape[2:] == (48, 64, 3)
    for row, (episode, step) in enumerate(zip(batch["episode"].tolist(), batch["step"].tolist(), strict=True)):
        np.testing.assert_array_equal(batch["depth/far"][row, 0], depth(episode + 1, step, "far")[1::2, 1::2])
        np.testing.assert_array_equal(batch["depth/raw"][row, 0], depth(episode + 1, step, "raw", (12, 16))[1::2, 1::2])


@pytest.mark.long
def test_workers_and_pieces_make_the_same_bytes(dataset: RldsDataset, root: Path, tmp_path: Path) -> None:
    repeated = arguments(dataset, tmp_path, "--cameras", "all,depth")
    assert main([*repeated, "--num-workers", "2"]) == EXIT_DAMAGED
    assert tree(tmp_path) == tree(root)


def test_verify_decodes_depth_and_the_doctor_looks_at_colour(root: Path, capsys: Capture) -> None:
    assert verify([str(root), "--deep"]) == 0
    assert doctor([str(root), "--frames", "50"]) in (0, 1)
    assert "frame_damaged" not in capsys.readouterr().out


def first_record(root: Path, camera: int) -> dict[str, int]:
    table = pa.ipc.open_file(root / FOLDER / "train" / "records.arrow").read_all().to_pylist()
    return next(row for row in table if row["camera"] == camera)


def test_a_damaged_depth_map_is_named(root: Path, tmp_path: Path, capsys: Capture) -> None:
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    path = first_record(copy, 1)
    shard = next((copy / FOLDER / "train").glob("*-00000-of-*.arrayrecord"))
    flip(shard, path["position"] + 60)
    with pytest.raises(RecordError, match="episode 0"):
        open_loader(copy, [0], cameras="bits").batch_at(0)
    assert verify([str(copy), "--deep"]) == 1
    assert "record 7" in capsys.readouterr().out


@pytest.mark.parametrize("changed", [{}, dict.fromkeys(("wide", *DEPTH))])
def test_deep_verification_compares_kinds_with_the_manifest(
    root: Path, tmp_path: Path, capsys: Capture, changed: dict[str, Any]
) -> None:
    """A manifest that calls depth colour, or colour depth, does not describe its records."""
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    edit_manifest(copy / FOLDER, lambda manifest: manifest["parameters"].update(depth=changed))
    assert verify([str(copy), "--deep"]) == 1
    said = capsys.readouterr().out
    assert ("not a JPEG" in said) == ("near" not in changed)
    assert ("not a depth map" in said) == ("wide" in changed)


def test_the_picture_of_a_batch_shows_depth(root: Path) -> None:
    loader = open_loader(root, [0, 1], cameras=["wide", "near"])
    batch, refs = loader.batch_at(0), loader.describe(0)
    without = {key: value for key, value in batch.items() if "depth" not in key}
    assert rows_html(batch, refs).count("<img") > rows_html(without, refs).count("<img")


def test_the_tracks_of_an_episode_and_its_recording_have_depth(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("rerun", reason="needs the extra view")
    from pairstream.view.recording import save
    from tests.pairstream.view.recorded import read_recording

    dataset = Catalog(root).open("demo")
    tracks = open_tracks(dataset, open_index(dataset, "train"), 0)
    save(tracks, tmp_path / "e.rrd")
    (camera,) = (item for item in tracks.cameras if item.camera.name == "near")
    recorded = read_recording(tmp_path / "e.rrd")["/cameras/near"]
    episode = open_loader(root, [0], cameras=["near"]).episode("demo", 0).cameras["depth/near"]
    assert camera.steps.tolist() == episode.steps.tolist() == recorded["step"]
    for path, (step, depth) in enumerate(zip(episode.steps.tolist(), episode.frames, strict=True)):
        np.testing.assert_array_equal(camera.read_depth(step), depth)
        assert bytes(recorded["DepthImage:buffer"][path][0]) == depth.tobytes()
        shown = simplejpeg.decode_jpeg(camera.read_picture(step)).astype(int)
        assert np.abs(shown - colour_depth(depth, camera.depth_range)).mean() < 12
    assert {meter for (meter,) in recorded["DepthImage:meter"]} == {1000.0}


def test_a_dry_run_tells_the_depth(dataset: RldsDataset, tmp_path: Path, capsys: Capture) -> None:
    assert main(arguments(dataset, tmp_path, "--cameras", "wide,near", "--image-size", "12x12", "--dry-run")) == 0
    assert "near 12x12, stretched from 24x32" in capsys.readouterr().out


def test_numbers_of_an_unknown_unit_are_kept_with_a_warning(
    dataset: RldsDataset, tmp_path: Path, capsys: Capture
) -> None:
    unknown = {name: {**item, **({"unit": "unknown"} if "unit" in item else {})} for name, item in CAMERAS.items()}
    more = ("--cameras", "all,depth", "--episodes", "train[1:]")
    assert main(arguments(dataset, tmp_path, *more, cameras=unknown)) == 0
    said = capsys.readouterr().err
    assert "nobody says the unit of depth in near, so its numbers stay as they are" in said
    assert "depth of bits, far, packed is left out: nobody says its unit" in said
    assert manifest(tmp_path)["parameters"]["depth"] == {"near": None, "raw": 0.5}
    batch = open_loader(tmp_path, [0], cameras="near").batch_at(0)
    np.testing.assert_array_equal(batch["depth"][0, 0], depth(1, 0, "near"))


@pytest.mark.parametrize(
    ("more", "fields", "message"),
    [
        (("--cameras", "far"), {"far": {"unit": "unknown"}}, "far is float32, and nobody says its unit"),
        (("--cameras", "depth"), {"only": "far", "far": {"unit": "unknown"}}, "depth of far: nobody says its unit"),
        (("--layout", "pairs", "--cameras", "near"), {}, "near is depth, and pairs are of colour"),
        (("--cameras", "near"), {"near": {"path": "observation/state"}}, "expected numbers of 16 bits"),
        (("--cameras", "near"), {"near": {"path": "observation/image"}}, "expected numbers of 16 bits"),
        (("--cameras", "near"), {"near": {"path": "language_instruction"}}, "expected numbers of 16 bits"),
        (("--cameras", "wide"), {"wide": {"path": "near"}}, "not a picture"),
        (("--cameras", "far"), {"far": {"unit": None}}, "is of kind depth and has no unit"),
        (("--cameras", "far"), {"far": {"scale": 2.0}}, "has unit and scale"),
        (("--cameras", "wide"), {"wide": {"unit": "mm"}}, "is of kind colour and has unit"),
        (("--cameras", "wide"), {"wide": {"kind": "depth", "unit": "mm"}}, "0 colour cameras with role primary"),
        (("--cameras", "deep"), {}, "no dataset has 'deep'"),
    ],
)
def test_what_cannot_be_depth_is_refused(
    dataset: RldsDataset, tmp_path: Path, capsys: Capture, more: tuple[str, ...], fields: dict[str, Any], message: str
) -> None:
    changed = {name: {**item, **fields.get(name, {})} for name, item in CAMERAS.items()}
    if only := fields.get("only"):
        changed = {name: changed[name] for name in ("wide", only)}
    cameras = {name: {key: value for key, value in item.items() if value is not None} for name, item in changed.items()}
    assert main(arguments(dataset, tmp_path, *more, cameras=cameras)) == EXIT_USAGE
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cameras": "near", "decode": "device"}, "depth is depth; take decode='host'"),
        ({"cameras": "depth/other2"}, "they store .*depth/primary"),
        ({"cameras": "wrist"}, "no dataset of the mixture stores 'wrist'"),
    ],
)
def test_a_loader_refuses_what_depth_does_not_have(root: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        iter(open_loader(root, [0], **options))


def test_colour_and_depth_make_no_one_camera(dataset: RldsDataset, root: Path, tmp_path: Path) -> None:
    main(arguments(dataset, tmp_path, "--cameras", "depth"))
    members = {"colour": {"dataset": "demo"}, "depth": {"dataset": "demo", "root": str(tmp_path)}}
    with pytest.raises(ArgumentError, match="colour in some datasets and depth in others"):
        make_loader(root, members, batch_size=4, frames=[0], split="train")


def test_trainers_of_pictures_refuse_depth(root: Path) -> None:
    sample = lerobot_adapter.sample(cameras=["primary", "near"])
    with pytest.raises(ArgumentError, match="depth/near: this trainer takes pictures of colour"):
        make_loader(root, "demo", batch_size=4, split="train", **sample)


def test_an_export_leaves_depth_out_and_says_so(root: Path, tmp_path: Path, capsys: Capture) -> None:
    assert export([str(root), "--dataset", "demo", "--output", str(tmp_path / "out")]) == 0
    assert "not exported: depth (bits, far, near, packed, raw)" in capsys.readouterr().out
    info = json.loads((tmp_path / "out/meta/info.json").read_text())
    assert [key for key in info["features"] if "images" in key] == ["observation.images.primary"]
    more = ["--cameras", "primary,near", "--output", str(tmp_path / "refused")]
    assert export([str(root), "--dataset", "demo", *more]) == EXIT_USAGE
    assert "depth/near cannot be exported" in capsys.readouterr().err
