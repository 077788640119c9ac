"""Depth of LeRobot datasets: videos of 12 and 16 bits and pictures in parquet, compared with what was written."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from convert.errors import EXIT_DAMAGED, EXIT_USAGE
from convert.run.command import main
from convert.source.lerobot.dataset import find
from convert.source.lerobot.info import DepthCodes
from convert.verify.command import main as verify
from stream import Frames, make_loader
from tests.fixtures.datasets.lerobot_dataset import edit_info
from tests.fixtures.datasets.numbered_lerobot import CAMERA, LENGTHS, V2, V3, read_rows, write_numbered, write_rows
from tests.fixtures.datasets.rlds_dataset import png

Capture = pytest.CaptureFixture[str]
DEPTH = "observation.images.front_depth"
SHAPE = (48, 64)
CODES = {"video.depth_min": 0.01, "video.depth_max": 10.0, "video.shift": 3.5, "video.use_log": True}


def values(episode: int, step: int, most: int) -> np.ndarray:
    """Numbers of a step: noise over a slope, with holes."""
    rng = np.random.default_rng([episode, step])
    slope = np.linspace(most // 4, most, SHAPE[0] * SHAPE[1]).reshape(SHAPE)
    actual = np.clip(slope + rng.integers(-9, 9, SHAPE), 0, most)
    return np.where(rng.random(SHAPE) < 0.1, 0, actual).astype(np.uint16)


def write_video(path: Path, frames: Sequence[np.ndarray], *, codec: str, pixels: str, fps: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"x265-params": "lossless=1:log-level=none"} if codec == "libx265" else {}
    with av.open(str(path), "w", format={"ffv1": "matroska", "png": "mov"}.get(codec)) as out:
        stream: Any = out.add_stream(codec, rate=Fraction(fps), options=options)
        stream.height, stream.width, stream.pix_fmt = *SHAPE, pixels
        for position, values in enumerate(frames):
            frame = av.VideoFrame(SHAPE[1], SHAPE[0], pixels)
            plane = frame.planes[0]
            rows = np.zeros((SHAPE[0], plane.line_size // 2), ">u2" if pixels.endswith("be") else "<u2")
            rows[:, : SHAPE[1]] = values
            plane.update(rows.tobytes())
            for second in frame.planes[1:]:
                second.update(np.full(second.buffer_size // 2, 1 << 11, "<u2").tobytes())
            frame.pts, frame.time_base = position, 1 / Fraction(fps)
            out.mux(stream.encode(frame))
        out.mux(stream.encode())


def add_video(folder: Path, *, codec: str, pixels: str, most: int, about: dict[str, Any]) -> Path:
    """Add a depth camera with videos beside those of the colour camera."""
    info = json.loads((folder / "meta/info.json").read_text())
    is_v3 = info["codebase_version"] == "v3.0"
    shown = [[values(episode, step, most) for step in range(steps)] for episode, steps in enumerate(LENGTHS)]
    files = [[frame for item in shown for frame in item]] if is_v3 else shown
    for number, frames in enumerate(files):
        position = {"chunk_index": 0, "file_index": number, "episode_chunk": 0, "episode_index": number}
        path = folder / (V3 if is_v3 else V2)["video_path"].format(video_key=DEPTH, **position)
        write_video(path, frames, codec=codec, pixels=pixels, fps=info["fps"])
    if is_v3:
        copied = [
            {f"videos/{DEPTH}/{key.rpartition('/')[2]}": row[key] for key in row if key.startswith(f"videos/{CAMERA}/")}
            for row in read_rows(folder)
        ]
        write_rows(folder, [row | more for row, more in zip(read_rows(folder), copied, strict=True)])
    declare(folder, "video", {"video.codec": codec, "video.pix_fmt": pixels, **about})
    return folder


def declare(folder: Path, dtype: str, about: dict[str, Any], *, channels: int = 1) -> None:
    feature = {"dtype": dtype, "shape": [*SHAPE, channels], "names": ["height", "width", "channels"], "info": about}
    edit_info(folder, lambda info: info["features"].update({DEPTH: feature}))


def add_pictures(folder: Path, encode: Callable[[np.ndarray], bytes], about: dict[str, Any]) -> Path:
    """Add a depth camera with pictures in the parquet files."""
    for path in sorted(folder.glob("data/*/*.parquet")):
        table = pq.read_table(path)
        rows = zip(table["episode_index"].to_pylist(), table["frame_index"].to_pylist(), strict=True)
        pictures = [{"bytes": encode(values(episode, step, 9000)), "path": None} for episode, step in rows]
        pq.write_table(table.append_column(DEPTH, pa.array(pictures)), path)
    declare(folder, "image", {"is_depth_map": True, **about})
    return folder


def convert(folder: Path, output: Path, *more: str) -> int:
    arguments = ["--datasets", f"lerobot:{folder}", "--output", str(output), "--num-workers", "1"]
    return main([*arguments, "--layout", "frames", "--image-size", "native", *more])


def compare(output: Path, expected: Callable[[int, int], np.ndarray], version: str) -> None:
    """Compare all windows with what was written, bitwise."""
    assert verify([str(output), "--deep"]) == 0
    frames = Frames([0, "last"], cameras=["primary", "depth/primary"], edges="repeat")
    loader = make_loader(output, "mine", batch_size=sum(LENGTHS), shuffle="none", split="train", frames=frames)
    batch = loader.batch_at(0)
    assert batch["depth_mask/primary"].all()
    assert batch["frames/primary"].shape[2:] == (64, 64, 3)
    for row, episode in enumerate(batch["episode"].tolist()):
        for path, step in enumerate(batch["frame_step"][row].tolist()):
            np.testing.assert_array_equal(batch["depth/primary"][row, path], expected(episode, step))
    assert (output / "mine" / version).is_dir()


@pytest.mark.long
@pytest.mark.parametrize(("version", "folder"), [("v3.0", "3.0.0"), ("v2.1", "2.1.0")])
@pytest.mark.parametrize("pixels", ["gray12le", "yuv420p12le"])
def test_codes_of_12_bits_become_the_millimetres_that_lerobot_gives(
    version: str, folder: str, pixels: str, tmp_path: Path
) -> None:
    written = write_numbered(tmp_path / "mine", version)
    add_video(written, codec="libx265", pixels=pixels, most=4095, about={"is_depth_map": True, **CODES})
    assert convert(written, tmp_path / "out", "--cameras", "all,depth") == 0
    compare(tmp_path / "out", lambda episode, step: DepthCodes().millimetres[values(episode, step, 4095)], folder)


@pytest.mark.parametrize(
    ("codec", "pixels", "most"),
    [("ffv1", "gray16le", 65535), ("libx265", "gray12le", 4095), ("png", "gray16be", 60000)],
)
def test_plain_numbers_of_a_video_are_kept(codec: str, pixels: str, most: int, tmp_path: Path, capsys: Capture) -> None:
    folder = add_video(write_numbered(tmp_path / "mine"), codec=codec, pixels=pixels, most=most, about={})
    assert convert(folder, tmp_path / "out", "--cameras", "all,depth") == 0
    assert "nobody says the unit of depth in front_depth" in capsys.readouterr().err
    compare(tmp_path / "out", lambda episode, step: values(episode, step, most), "3.0.0")


def test_a_unit_is_declared_as_other_facts_are(tmp_path: Path, capsys: Capture) -> None:
    folder = add_video(write_numbered(tmp_path / "mine"), codec="ffv1", pixels="gray16le", most=9000, about={})
    config = tmp_path / "mine.yaml"
    camera = "{unit: null, scale: 0.5, role: wrist}"
    config.write_text(f"described:\n  mine:\n    source: lerobot:{folder}\n    cameras:\n      front_depth: {camera}\n")
    assert convert(folder, tmp_path / "out", "--cameras", "depth", "--config", str(config)) == 0
    assert "unit" not in capsys.readouterr().err
    batch = make_loader(
        tmp_path / "out", "mine", batch_size=1, frames=Frames([0], cameras="depth/wrist"), shuffle="none"
    )
    np.testing.assert_array_equal(batch.batch_at(0)["depth"][0, 0], np.rint(values(0, 0, 9000) / 2))


def as_tiff(actual: np.ndarray) -> bytes:
    written = io.BytesIO()
    Image.fromarray(actual).save(written, "TIFF", compression="raw")
    return written.getvalue()


@pytest.mark.parametrize(
    ("encode", "unit"),
    [(png, "mm"), (as_tiff, "mm"), (lambda actual: as_tiff((actual / 1000).astype(np.float32)), "m")],
)
def test_pictures_in_parquet_become_millimetres(encode: Any, unit: str, tmp_path: Path) -> None:
    folder = add_pictures(write_numbered(tmp_path / "mine"), encode, {"depth_unit": unit})
    assert convert(folder, tmp_path / "out", "--cameras", "all,depth") == 0
    compare(tmp_path / "out", lambda episode, step: values(episode, step, 9000), "3.0.0")


def test_depth_is_left_out_by_default_and_its_files_may_be_missing(tmp_path: Path) -> None:
    folder = add_video(write_numbered(tmp_path / "mine"), codec="ffv1", pixels="gray16le", most=9000, about={})
    for path in folder.glob(f"videos/{DEPTH}/*/*"):
        path.unlink()
    assert convert(folder, tmp_path / "out", "--cameras", "all") == 0
    manifest = json.loads((tmp_path / "out/mine/3.0.0/dataset.json").read_text())
    assert manifest["parameters"]["cameras"] == ["front"]
    assert manifest["spec"]["cameras"]["front_depth"]["kind"] == "depth"


@pytest.mark.parametrize(
    ("about", "channels"), [({"video.pix_fmt": "yuv420p"}, 1), ({"video.pix_fmt": "gray"}, 1), ({}, 3)]
)
def test_a_picture_of_depth_is_left_out_and_said(
    about: dict[str, Any], channels: int, tmp_path: Path, capsys: Capture
) -> None:
    folder = write_numbered(tmp_path / "mine")
    declare(folder, "video", about, channels=channels)
    assert convert(folder, tmp_path / "out", "--dry-run") == 0
    assert "not converted: observation.images.front_depth (a picture of depth, in 8 bits or colours)" in (
        capsys.readouterr().out
    )
    assert "steps/" + DEPTH not in find(str(folder), [], {}).features


def test_frames_that_are_no_depth_are_holes(tmp_path: Path) -> None:
    folder = add_video(write_numbered(tmp_path / "mine"), codec="ffv1", pixels="gray16le", most=9000, about={})
    (path,) = folder.glob(f"videos/{DEPTH}/*/*")
    (colour,) = folder.glob(f"videos/{CAMERA}/*/*")
    path.write_bytes(colour.read_bytes())
    assert convert(folder, tmp_path / "out", "--cameras", "all,depth") == EXIT_DAMAGED
    (line, *_) = (tmp_path / "out/mine/3.0.0/quarantine.jsonl").read_text().splitlines()
    assert "front_depth: videos" in json.loads(line)["detail"]
    assert "pixels of yuv420p" in line


def test_a_code_of_more_than_12_bits_is_damage(tmp_path: Path) -> None:
    folder = write_numbered(tmp_path / "mine")
    add_video(folder, codec="ffv1", pixels="gray16le", most=5000, about={"is_depth_map": True, **CODES})
    assert convert(folder, tmp_path / "out", "--cameras", "all,depth") == EXIT_DAMAGED
    assert "codes have 12 bits" in (tmp_path / "out/mine/3.0.0/quarantine.jsonl").read_text()


@pytest.mark.parametrize(
    "wrong",
    [
        {"video.depth_min": "near"},
        {"video.depth_max": 0.001},
        {"video.depth_min": float("nan")},
        {"video.shift": -1.0},
        {"video.depth_max": float("inf")},
    ],
    ids=str,
)
def test_codes_without_a_range_are_refused(wrong: dict[str, Any], tmp_path: Path, capsys: Capture) -> None:
    folder = write_numbered(tmp_path / "mine")
    declare(folder, "video", {"is_depth_map": True, **wrong})
    assert convert(folder, tmp_path / "out") == EXIT_USAGE
    assert "is this a LeRobot dataset?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code_fields", "digest"),
    [
        ({}, "f0023bc093b7b87a"),
        ({"use_log": False}, "5622cf581d60de60"),
        ({"depth_min": 0.1, "depth_max": 5.0, "shift": 0.5}, "c6e895294dc92c30"),
        ({"depth_max": 70.0}, "905f2ca00fad0ea6"),
    ],
    ids=str,
)
def test_the_millimetres_of_codes_are_those_of_lerobots_dequantize_depth(
    code_fields: dict[str, Any], digest: str
) -> None:
    """The digests are of what its numpy function gives for the codes 0 to 4095."""
    actual = DepthCodes(**code_fields).millimetres
    assert hashlib.sha256(actual.astype("<u2").tobytes()).hexdigest().startswith(digest)
