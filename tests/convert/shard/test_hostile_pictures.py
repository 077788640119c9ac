"""Pictures and tensors that claim more bytes than they have, or inflate beyond their declared size."""

import os
import zlib
from pathlib import Path

import pytest

from convert.errors import MalformedEpisode
from convert.source.features import Feature
from convert.source.rlds.parser import EpisodeParser
from convert.verify.command import verify_root
from tests.fixtures.datasets.rlds_dataset import demo_episode, demo_features, serialise
from tests.fixtures.faults.memory_limit import memory_limit


def test_more_tensors_than_steps_are_refused_before_they_inflate() -> None:
    from tensorflow_datasets.proto import tf_example_pb2

    example = tf_example_pb2.Example.FromString(serialise(demo_features(), demo_episode(2)))
    bomb = zlib.compress(bytes(1 << 24))
    example.features.feature["steps/depth"].bytes_list.value.extend([bomb] * 500)
    camera = Feature(path="steps/observation/image", kind="image", level="step", shape=(None, None, 3), dtype="uint8")
    depth = Feature(path="steps/depth", kind="tensor", level="step", shape=(1 << 24,), dtype="uint8", encoding="zlib")
    with memory_limit(2 << 30), pytest.raises(MalformedEpisode, match="500 stored tensors for 2 steps"):
        EpisodeParser([camera], [depth]).parse(example.SerializeToString())


@pytest.mark.parametrize("name", ["dataset.json", "quarantine.jsonl", "train/steps.arrow"])
def test_verifying_does_not_wait_for_a_pipe(folder: Path, root: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    problems = [problem for problem in verify_root(root, jobs=1).problems if str(problem.file).endswith(name)]
    assert any("device or pipe" in problem.text or "cannot be read" in problem.text for problem in problems)
