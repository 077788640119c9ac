"""The compatibility promise: a root that a release wrote opens in every later release, with the same batches."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from convert.verify.command import main as verify
from pairstream.info.command import main as info
from stream.format.manifest import read_manifest
from tests.data.make_root import CONFIGS, describe

ARCHIVES = sorted((Path(__file__).resolve().parents[2] / "data").glob("root-*.tar.xz"))


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def released_root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_there_is_a_root_of_the_first_release_with_the_promise() -> None:
    assert "root-0.2.tar.xz" in [path.name for path in ARCHIVES]


def test_a_root_of_a_release_gives_the_batches_that_it_gave_then(released_root: Path) -> None:
    expected = json.loads((released_root / "expected.json").read_text())
    described = json.loads(json.dumps(describe(released_root)))
    assert described.keys() == expected.keys() == CONFIGS.keys()
    for name, batches in expected.items():
        assert described[name]["rows"] == batches["rows"]
        # Decoders of JPEG may differ by a level.
        np.testing.assert_allclose(described[name]["frames"], batches["frames"], atol=1)
        assert read_manifest(released_root / name / "1.0.0").versions["pairstream"].startswith("0.")


def test_the_commands_accept_a_root_of_a_release(released_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (released_root / "expected.json").unlink()
    assert verify([str(released_root)]) == 0
    assert info([str(released_root)]) == 0
    assert "2 datasets, 4 episodes" in capsys.readouterr().out
