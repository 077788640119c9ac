"""Roots of format 1, with three small files a shard, are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stream import make_loader
from stream.format.names import MANIFEST_NAME
from stream.storage.errors import FormatError


def test_a_root_of_format_1_is_refused_in_one_sentence_that_says_what_to_do(oxe_root: Path, tmp_path: Path) -> None:
    shutil.copytree(oxe_root / "bridge", tmp_path / "bridge")
    (manifest,) = tmp_path.glob(f"bridge/*/{MANIFEST_NAME}")
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "format_version": 1}))
    with pytest.raises(
        FormatError, match=r"format version 1, this program reads version 2; convert it again"
    ) as raised:
        make_loader(tmp_path, "bridge", batch_size=4)
    assert "\n" not in str(raised.value)
