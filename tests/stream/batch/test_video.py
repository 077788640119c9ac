"""Frames that are stored as chunks of H.264 or AV1: read once, like the source, the same from any loader."""

from __future__ import annotations

import itertools
import shutil
import sys
from pathlib import Path
from typing import Any

import av
import grain.python as grain
import numpy as np
import pyarrow.parquet as pq
import pytest
from array_record.python.array_record_module import ArrayRecordReader

from convert.plan import ConvertConfig
from convert.shard.images import FramePolicy
from convert.verify.command import main as verify
from pairstream.view.tracks import open_tracks
from stream import Frames, RecordError, digest, make_loader
from stream.base.errors import ArgumentError
from stream.batch.assemble import Assembler
from stream.format.catalog import Catalog
from stream.format.frame import decode_frame
from stream.format.index import open_index
from stream.format.names import shard_file
from stream.format.video import VideoCodec, decode_chunk
from tests.fixtures.command import flip, run
from tests.fixtures.datasets.rewritten_records import rewrite_records
from tests.fixtures.datasets.rlds_dataset import convert_dataset, demo_episode, jpeg, write_dataset
from tests.fixtures.moving_pictures import moving_pictures, psnr

SIZE = (64, 80)
GOP = 4
LENGTHS = (9, 6, 13)
PICTURES = [moving_pictures(count, size=SIZE, seed=seed) for seed, count in enumerate(LENGTHS)]
FOLDER = Path("demo/1.0.0/train")


def episode(number: int) -> dict[str, Any]:
    demo = demo_episode(LENGTHS[number], seed=number)
    for step, picture in zip(demo["steps"], PICTURES[number], strict=True):
        step["observation"]["image"] = jpeg(picture, 98)
    return demo


@pytest.fixture(scope="module", params=["h264", pytest.param("av1", marks=pytest.mark.long)])
def codec(request: pytest.FixtureRequest) -> VideoCodec:
    return request.param


@pytest.fixture(scope="module")
def root(codec: VideoCodec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(codec)
    dataset = write_dataset(folder / "source", splits={"train": [[episode(0), episode(1)], [episode(2)]]})
    options = ConvertConfig(layout="frames", policy=FramePolicy(size=None, codec=codec), gop=GOP, crf=18)
    convert_dataset(dataset.conversion(folder / "root", options))
    return folder / "root"


def loader(root: Path, **options: Any) -> Any:
    return make_loader(root, "demo", **{"split": "train", "batch_size": 4, "seed": 3, "num_workers": 0, **options})


def check(batch: dict[str, Any]) -> None:
    """Every frame is the one of its step."""
    for row, number in enumerate(batch["episode"].tolist()):
        for pixels, step in zip(batch["frames"][row], batch["frame_step"][row].tolist(), strict=True):
            likeness = [psnr(picture, pixels) for picture in PICTURES[number]]
            assert likeness[step] == max(likeness) > 35


WINDOWS = [(0,), (-3, -2, -1, 0, 1, 2, 3, 4), (2, 0, 0, "goal", -1, "1..3")]


@pytest.mark.parametrize("frames", WINDOWS, ids=str)
def test_each_frame_of_a_window_is_that_of_its_step(root: Path, frames: Any) -> None:
    windows = loader(root, frames=Frames(frames, edges="repeat"))
    for step in range(6):
        check(windows.batch_at(step))


def test_batches_are_the_same_from_any_loader(root: Path) -> None:
    options: dict[str, Any] = {"frames": {"steps": (-1, 0, "1..4"), "edges": "repeat"}}
    expected = [loader(root, **options).batch_at(step) for step in range(4)]
    digests = list(map(digest, expected))
    threads = loader(root, num_workers={"threads": 2}, **options)
    assert [digest(threads.batch_at(step)) for step in range(4)] == digests
    workers = loader(root, num_workers=2, **options)
    assert list(map(digest, itertools.islice(workers, 4))) == digests
    iterator = iter(loader(root, **options))
    next(iterator)
    state = iterator.get_state()
    resumed = iter(loader(root, num_workers=1, **options))
    resumed.set_state(state)
    assert digest(next(resumed)) == digests[1]
    for rank in range(2):
        mine = loader(root, rank=rank, world_size=2, **options).batch_at(2)
        np.testing.assert_array_equal(mine["frames"], expected[2]["frames"][2 * rank : 2 * rank + 2])
    # A frame is the same alone as in a window.
    for row, (number, frames) in enumerate(zip(expected[0]["episode"], expected[0]["frame_step"], strict=True)):
        alone = loader(root, frames=(0,)).episode("demo", int(number)).frames
        np.testing.assert_array_equal(expected[0]["frames"][row], alone[frames])


def test_a_chunk_is_read_once_for_all_frames_of_a_row(root: Path) -> None:
    windows = loader(root, frames=(0, 1, 2, 3), batch_size=1)
    sizes = Catalog(root).open("demo")
    records = open_index(sizes, "train").records
    for step in range(10):
        rows = windows.data.plan.rows(windows.data.plan.batch_samples(step, 1))
        assembler = Assembler(windows.data.spec)
        out = assembler.empty(1)
        work = assembler.assemble(rows, out).work
        first = int(open_index(sizes, "train").episodes.array("first_record")[out["episode"][0]])
        chunks = {first + frames - frames % GOP for frames in out["frame_step"][0].tolist()}
        assert work.bytes == records.take("num_bytes", np.array(sorted(chunks))).sum()


def test_the_record_that_describe_names_is_the_chunk_for_any_reader(root: Path) -> None:
    windows = loader(root, frames=(0,))
    for step in range(5):
        batch = windows.batch_at(step)
        for row, ref in enumerate(windows.describe(step)):
            path = str(root / FOLDER / shard_file(ref.shard))
            reader = ArrayRecordReader(path)
            (record,) = reader.read([ref.record])
            reader.close()
            assert grain.ArrayRecordDataSource(path)[ref.record] == record
            np.testing.assert_array_equal(decode_chunk(record, ref.step % GOP, [SIZE]), batch["frames"][row, 0])


def test_a_damaged_chunk_is_an_error_of_its_records_and_replaced_as_any_other(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "copy")
    index = open_index(Catalog(root).open("demo"), "train")
    record = int(index.episodes.array("first_record")[1])
    position = int(index.records.array("position")[record])
    flip(tmp_path / "copy" / FOLDER / shard_file(index.shards.stem(0)), position + 200)
    with pytest.raises(RecordError, match="its bytes are not those that were written") as result:
        for step in range(8):
            loader(tmp_path / "copy", frames=(0,)).batch_at(step)
    # Episode 0 has three chunks.
    assert (result.value.episode, result.value.record) == (1, 3)
    windows = loader(tmp_path / "copy", frames=Frames((0, 1), edges="repeat"), on_error="replace")
    for step in range(5):
        check(windows.batch_at(step))
    assert verify([str(tmp_path / "copy"), "--deep"]) == 1


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda chunk: chunk[: len(chunk) // 3], "chunk of|holds"),
        pytest.param(lambda chunk: b"nothing at all", "starts with", marks=pytest.mark.long),
    ],
)
def test_a_chunk_with_sound_hashes_and_wrong_content_is_an_error_and_found_when_deep(
    root: Path, tmp_path: Path, edit: Any, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(root, tmp_path / "copy")
    folder = tmp_path / "copy" / "demo" / "1.0.0"
    stem = open_index(Catalog(root).open("demo"), "train").shards.stem(0)
    rewrite_records(folder, "train", stem, lambda records: [edit(records[0]), *records[1:]])
    with pytest.raises(RecordError, match=text):
        for step in range(8):
            loader(tmp_path / "copy", frames=(0,)).batch_at(step)
    assert verify([str(tmp_path / "copy")]) == 0
    assert verify([str(tmp_path / "copy"), "--deep"]) == 1
    assert "record 0 (episode 0, step 0)" in capsys.readouterr().out


@pytest.mark.long
def test_verify_and_doctor_find_nothing_wrong(root: Path) -> None:
    assert verify([str(root), "--deep"]) == 0
    assert run(str(root), module="pairstream doctor").code == 0


def test_the_device_decodes_no_video_and_a_loader_without_pyav_says_what_to_install(
    root: Path, codec: VideoCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ArgumentError, match=f"decode='device' is for JPEGs, demo has {codec}; take decode='host'"):
        loader(root, frames=Frames(decode="device"))
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ArgumentError, match=rf"demo \({codec}\) needs av, .* install pairstream\[video\]"):
        loader(root)


def test_an_export_has_jpegs_of_the_frames(root: Path, tmp_path: Path) -> None:
    done = run(str(root), "--dataset", "demo", "--output", str(tmp_path / "out"), module="pairstream export")
    assert done.code == 0, done.err
    (table,) = (tmp_path / "out" / "data").rglob("*.parquet")
    for row in pq.read_table(table).to_pylist():
        pixels = decode_frame(row["observation.images.primary"]["bytes"])
        assert psnr(PICTURES[row["episode_index"]][row["frame_index"]], pixels) > 33


def test_a_video_export_copies_h264_and_encodes_all_else(root: Path, codec: VideoCodec, tmp_path: Path) -> None:
    done = run(str(root), "--dataset", "demo", "--output", str(tmp_path / "out"), "--video", module="pairstream export")
    assert done.code == 0, done.err
    (path,) = (tmp_path / "out").rglob("*.mp4")
    tracks = [track for number in range(3) for track in open_episode(root, number).cameras]
    stored: list[Any] = [track.read(step) for track in tracks for step in track.steps.tolist()]
    with av.open(str(path)) as video:
        shown = [frame.to_ndarray() for frame in video.decode(video=0)]
    assert len(shown) == sum(LENGTHS)
    if codec == "h264":
        context = av.CodecContext.create("h264", "r")
        chunks = [bytes(frame.chunk) for frame in stored if not frame.number]
        packets = [packet for chunk in chunks for packet in (*context.parse(chunk), *context.parse())]
        expected = [frame.to_ndarray() for packet in (*packets, None) for frame in context.decode(packet)]
        np.testing.assert_array_equal(shown, expected)
        with av.open(str(path)) as video:
            written = b"".join(slices(bytes(packet), 4) for packet in video.demux(video=0))
        assert written == b"".join(slices(bytes(packet), 0) for packet in packets)


def slices(packet: bytes, length: int) -> bytes:
    """Return the coded slices of a packet, with lengths before them (of an MP4) or start codes (0)."""
    units = []
    if length:
        while packet:
            size = int.from_bytes(packet[:length], "big")
            units.append(packet[length : length + size])
            packet = packet[length + size :]
    else:
        units = [unit.rstrip(b"\0") for unit in packet.split(b"\0\0\1")[1:]]
    return b"".join(unit.rstrip(b"\0") for unit in units if unit[0] & 31 in (1, 5))


def open_episode(root: Path, number: int) -> Any:
    dataset = Catalog(root).open("demo")
    return open_tracks(dataset, open_index(dataset, "train"), number)


def test_an_episode_is_seen_and_recorded(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("rerun", reason="needs the extra view")
    from pairstream.view.recording import save
    from tests.pairstream.view.recorded import read_recording

    tracks = open_episode(root, 2)
    assert save(tracks, tmp_path / "e.rrd") == []
    (track,) = tracks.cameras
    recorded = read_recording(tmp_path / "e.rrd")[f"/cameras/{track.camera.name}"]
    for step, (buffer,) in zip(recorded["step"], recorded["Image:buffer"], strict=True):
        pixels = np.frombuffer(bytes(buffer), np.uint8).reshape(*SIZE, 3)
        assert psnr(PICTURES[2][step], pixels) > 35
        assert psnr(PICTURES[2][step], decode_frame(track.read_picture(step))) > 33


def test_a_batch_of_missing_frames_only_is_black(tmp_path: Path) -> None:
    missing_step, damaged = 3, demo_episode(6)
    damaged["steps"][missing_step]["observation"]["image"] = b"\xff\xd8\xffdamaged"
    dataset = write_dataset(tmp_path / "source", splits={"train": [[damaged]]})
    options = ConvertConfig(layout="frames", policy=FramePolicy(size=None, codec="h264"), gop=2, crf=18)
    convert_dataset(dataset.conversion(tmp_path / "root", options))
    more: dict[str, Any] = {"frames": {"steps": (0,), "edges": "repeat"}, "shuffle": "none"}
    loader = make_loader(tmp_path / "root", "demo", batch_size=1, num_workers=0, **more)
    for step in range(6):
        batch = loader.batch_at(step)
        assert batch["step"].tolist() == [step]
        assert batch["frames_mask"].tolist() == [[step != missing_step]]
        assert batch["frames"].any() == (step != missing_step)
