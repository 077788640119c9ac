"""Bags converted by the command: the same bytes over workers, damage in the quarantine."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from convert.errors import EXIT_DAMAGED
from convert.run.command import main
from tests.convert.source.rosbag.bags import FORMS, FRONT, LAYOUT, recording, write
from tests.convert.source.rosbag.test_damage import without


def _content(root: Path) -> dict[str, bytes]:
    files = [
        path for path in root.rglob("*") if path.is_file() and path.suffix in (".arrow", ".array_record", ".jsonl")
    ]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


@pytest.mark.long
def test_bags_convert_to_the_same_bytes_with_one_and_two_workers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, form in enumerate(FORMS):
        write(tmp_path / "bags" / form, form, recording(form, seed=seed))
    write(tmp_path / "bags" / "gap", "mcap", without(recording("mcap", seconds=3), FRONT, 0.75, 2.25))
    write(tmp_path / "bags" / "lost", "mcap", without(recording("mcap"), LAYOUT["features"]["action"]["topic"], 0.2, 1))
    (tmp_path / "bags" / "open.mcap").write_bytes(b"\x89MCAP0\r\n")
    config = tmp_path / "own.yaml"
    entry = {"source": f"rosbag:{tmp_path}/bags", "layout": LAYOUT}
    config.write_text(yaml.safe_dump({"datasets": {"own": entry}}))
    for workers in ("1", "2"):
        arguments = ["--datasets", str(config), "--output", str(tmp_path / workers), "--num-workers", workers]
        assert main([*arguments, "--layout", "frames", "--image-size", "24x32"]) == EXIT_DAMAGED, capsys.readouterr()
    single, two = _content(tmp_path / "1"), _content(tmp_path / "2")
    assert single and single.keys() == two.keys()
    assert all(single[name] == two[name] for name in single), [name for name in single if single[name] != two[name]]
    quarantine = b"".join(content for name, content in single.items() if name.endswith("quarantine.jsonl")).decode()
    assert "no picture for 0.600 s" in quarantine
    assert "has no message for" in quarantine
    assert "mcap recover open.mcap" in quarantine
