"""Frames that travel encoded: the same pictures in the end, whoever decodes them."""

from __future__ import annotations

import itertools
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import simplejpeg

from convert.shard.record_file import encode_record
from stream import ArgumentError, Frames, RecordError, digest, make_loader
from stream.base.errors import FormatError
from stream.batch.encoded import decode_frames, encoded_frames, pack_frames, with_frames
from stream.format.manifest import read_manifest
from stream.format.names import decode_record, frame_views
from stream.loader.loader import Loader
from tests.fixtures.datasets.rewritten_records import rewrite_records
from tests.stream.transforms import Halve

MIXTURE = {"bridge": 1, "kuka": 1}
SHAPE = (64, 64)
SHAPES = {"frames": SHAPE}


def loader_of(root: Path, **arguments: Any) -> Loader:
    return make_loader(root, MIXTURE, **{"batch_size": 8, "seed": 3, "frames": {"decode": "device"}, **arguments})


def decoded(batch: dict[str, Any]) -> dict[str, Any]:
    return with_frames(batch, decode_frames(batch, SHAPES))


@pytest.fixture
def damaged(oxe_root: Path, tmp_path: Path) -> Path:
    """Return two datasets; in a shard of one, each second frame is no JPEG, although every checksum agrees."""
    for name in MIXTURE:
        shutil.copytree(oxe_root / name, tmp_path / name)
    (folder,) = (tmp_path / "bridge").iterdir()
    shard = read_manifest(folder).splits["train"].shards[0]

    def spoil(records: list[bytes]) -> list[bytes]:
        pairs = map(decode_record, records)
        return [encode_record([first, second[:200] + bytes(len(second) - 200)]) for first, second in pairs]

    rewrite_records(folder, "train", shard.name, spoil)
    return tmp_path


@pytest.mark.parametrize("num_workers", [0, 2])
def test_frames_decoded_later_are_those_decoded_where_the_batch_is_made(oxe_root: Path, num_workers: int) -> None:
    now, later = loader_of(oxe_root, frames=Frames(decode="host")), loader_of(oxe_root, num_workers=num_workers)
    for expected, batch in itertools.islice(zip(now, later, strict=False), 12):
        assert "frames" not in batch
        assert digest(decoded(batch)) == digest(expected)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_transforms_see_the_rest_of_the_batch(oxe_root: Path, num_workers: int) -> None:
    plain = loader_of(oxe_root, frames=Frames(decode="host")).batch_at(0)
    batch = next(iter(loader_of(oxe_root, num_workers=num_workers, transforms=[Halve()])))
    np.testing.assert_array_equal(batch["action"], plain["action"] / 2)
    np.testing.assert_array_equal(decoded(batch)["frames"], plain["frames"])


@pytest.mark.parametrize(
    ("mixture", "frames"),
    [
        ("bridge,viola", {"steps": [-2, 0, 0, "1..3"], "cameras": ["primary", "wrist"], "edges": "repeat"}),
        ("droid", {"cameras": {"view": ("exterior_image_1_left", "exterior_image_2_left"), "wrist": "wrist"}}),
    ],
)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_cameras_and_windows_decoded_later_are_those_of_the_host(
    frames_root: Path, num_workers: int, mixture: str, frames: dict[str, Any]
) -> None:
    options: dict[str, Any] = {"batch_size": 8, "seed": 3}
    now = make_loader(frames_root, mixture, frames=frames, **options)
    later = make_loader(frames_root, mixture, frames={**frames, "decode": "device"}, num_workers=num_workers, **options)
    shapes = later.data.spec.frame_shapes
    assert len(shapes) == 2
    for expected, batch in itertools.islice(zip(now, later, strict=False), 4):
        assert not shapes.keys() & batch.keys()
        assert digest(with_frames(batch, decode_frames(batch, shapes))) == digest(expected)


def test_one_call_of_the_decoder_of_a_device_serves_all_cameras(
    frames_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from stream.frameworks.torch_carriers import Decoder

    calls = []

    def decode_jpeg(jpegs: list[Any], *, mode: str, device: Any) -> list[Any]:
        # In place of torchvision, which the tests do not install.
        calls.append(len(jpegs))
        return [torch.from_numpy(simplejpeg.decode_jpeg(jpeg.numpy())).permute(2, 0, 1).to(device) for jpeg in jpegs]

    monkeypatch.setitem(sys.modules, "torchvision.io", SimpleNamespace(decode_jpeg=decode_jpeg))
    frames = Frames([-2, 0], cameras=["primary", "wrist"], edges="repeat")
    now = make_loader(frames_root, "bridge,viola", batch_size=8, frames=frames)
    later = make_loader(frames_root, "bridge,viola", batch_size=8, frames=replace(frames, decode="device"))
    decoder = Decoder(later, torch.device("cpu"))
    calls.clear()
    for step in range(3):
        batch, expected = decoder.decode(later.batch_at(step)), now.batch_at(step)
        assert batch.keys() == expected.keys()
        for key in ("frames/primary", "frames/wrist"):
            np.testing.assert_array_equal(batch[key].numpy(), expected[key])
    assert len(calls) == 3


def test_a_torchvision_that_cannot_decode_on_the_device_is_refused(
    oxe_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from stream.frameworks.torch_carriers import Decoder

    def decode_jpeg(*_: Any, **__: Any) -> None:
        raise RuntimeError("torchvision not compiled with nvJPEG support")

    broken = SimpleNamespace(decode_jpeg=decode_jpeg)
    for module, message in ((broken, "not compiled with nvJPEG"), (None, "torchvision")):
        monkeypatch.setitem(sys.modules, "torchvision.io", module)
        with pytest.raises(
            ArgumentError, match=rf"on cpu needs torchvision with CUDA \(.*{message}.*take decode=\"host\""
        ):
            Decoder(loader_of(oxe_root), torch.device("cpu"))


def test_rows_of_fewer_frames_end_in_zeros() -> None:
    pictures = np.random.default_rng(0).integers(0, 255, (3, *SHAPE, 3), np.uint8)
    first, second, third = (simplejpeg.encode_jpeg(picture) for picture in pictures)
    records = [encode_record([first, second]), encode_record([third])]
    encoded = [
        (row, [(0, frame, jpeg) for frame, jpeg in enumerate(frame_views(data))]) for row, data in enumerate(records)
    ]
    batch = pack_frames(encoded, [], num_rows=2, max_frames=2)
    assert batch["frames_jpeg"].shape[1] % 4096 == 0
    assert [(row, frame, jpeg.tobytes()) for _, row, frame, jpeg in encoded_frames(batch)] == [
        (0, 0, first),
        (0, 1, second),
        (1, 0, third),
    ]
    frames = decode_frames(batch, SHAPES)["frames"]
    np.testing.assert_array_equal(frames[1, 0], simplejpeg.decode_jpeg(third))
    assert not frames[1, 1].any()
    with pytest.raises(FormatError, match=r"frames: frame 0 of row 0 cannot be decoded \(it is not 64x128\)"):
        decode_frames(batch, {"frames": (64, 128)})


def test_what_decode_may_be_is_said_and_jax_says_that_it_cannot(oxe_root: Path) -> None:
    with pytest.raises(ArgumentError, match="decode='gpu'; expected one of 'host', 'device'"):
        loader_of(oxe_root, frames={"decode": "gpu"})
    jax = pytest.importorskip("stream.jax", reason="jax is not installed")
    with pytest.raises(ArgumentError, match=r"JAX has no JPEG decoder; take decode=\"host\""):
        jax.to_devices(loader_of(oxe_root))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torch_decodes_on_the_way_to_the_device(oxe_root: Path, num_workers: int) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from stream.torch import to_device

    now = loader_of(oxe_root, frames=Frames(decode="host"))
    batches = to_device(loader_of(oxe_root, num_workers=num_workers), "cpu", prefetch=2)
    for step in range(6):
        batch, expected = next(batches), now.batch_at(step)
        assert batch.keys() == expected.keys()
        assert torch.equal(batch["frames"], torch.from_numpy(expected["frames"]))
    assert batches.get_state() == now.state_at(6)


def test_a_frame_that_cannot_be_decoded_on_the_way_is_named(damaged: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from stream.torch import to_device

    batches = to_device(loader_of(damaged), "cpu")
    with pytest.raises(RecordError, match=r"dataset bridge, split train, shard train-00000-of-0000\d.* decoded") as got:
        for _ in range(40):
            next(batches)
    assert got.value.step == batches.get_state()["step"]


def test_a_frame_that_cannot_be_decoded_on_the_way_is_replaced_as_on_the_host(damaged: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from stream.torch import to_device

    now, later = (loader_of(damaged, on_error="replace", frames=Frames(decode=decode)) for decode in ("host", "device"))
    batches = to_device(later, "cpu", prefetch=0)
    for _, expected in zip(range(10), now, strict=False):
        assert torch.equal(next(batches)["frames"], torch.from_numpy(expected["frames"]))
    assert later.stats()["replaced"] == now.stats()["replaced"] > 0


@pytest.mark.skipif("not __import__('torch').cuda.is_available()", reason="there is no CUDA device")
def test_nvjpeg_gives_the_pictures_of_the_host_within_rounding(oxe_root: Path) -> None:
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    from stream.torch import to_device

    now = loader_of(oxe_root, frames=Frames(decode="host"))
    for step, batch in zip(range(6), to_device(loader_of(oxe_root), "cuda"), strict=False):
        frames = batch["frames"]
        assert frames.is_cuda
        difference = np.abs(frames.cpu().numpy().astype(int) - now.batch_at(step)["frames"])
        assert difference.mean() < 1.0
