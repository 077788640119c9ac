"""Batches of stored video whose steps lack frames."""

from __future__ import annotations

from pathlib import Path

from convert.plan import ConvertConfig
from convert.shard.images import FramePolicy
from stream import make_loader
from tests.fixtures.datasets.rlds_dataset import convert_dataset, demo_episode, write_dataset

HOLE = 3


def test_a_batch_of_which_no_row_has_a_frame_is_black(tmp_path: Path) -> None:
    episode = demo_episode(6)
    episode["steps"][HOLE]["observation"]["image"] = b"\xff\xd8\xffdamaged"
    dataset = write_dataset(tmp_path / "source", splits={"train": [[episode]]})
    options = ConvertConfig(layout="frames", policy=FramePolicy(size=None, codec="h264"), gop=2, crf=18)
    convert_dataset(dataset.conversion(tmp_path / "root", options))
    loader = make_loader(
        tmp_path / "root", "demo", batch_size=1, frames=(0,), bounds="clamp", shuffle="none", num_workers=0
    )
    for step in range(6):
        batch = loader.batch_at(step)
        assert batch["step"].tolist() == [step]
        assert batch["frames_mask"].tolist() == [[step != HOLE]]
        assert batch["frames"].any() == (step != HOLE)
