"""A root that is published on the Hub loads from there, and its card says what it holds."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from PIL import Image

from pairstream.publish.command import main
from stream import digest, make_loader
from stream.base.errors import EXIT_FAILED, EXIT_USAGE
from tests.documentation.blocks import run_block
from tests.fixtures.servers.hub_server import TOKEN, Hub, hub_server
from tests.stream.cache.conftest import oxe_like

__all__ = ["oxe_like"]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_server() as server:
        server.use_here(monkeypatch, tmp_path / "home")
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("PAIRSTREAM_CACHE", str(tmp_path / "cache"))
        yield server


def snippet(card: str) -> str:
    return card.split("```python\n")[1].split("```")[0]


def test_a_published_root_loads_from_the_hub_as_its_card_says(
    hub: Hub, oxe_like: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(oxe_like), "me/robots", "--folder", "oxe", "--license", "cc-by-4.0", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    files = hub.repositories["me/robots"].files()
    local = {
        f"oxe/{path.relative_to(oxe_like)}": path.read_bytes()
        for path in oxe_like.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }
    assert {name: files[name] for name in local} == local
    added = set(files) - set(local)
    assert added == {".gitattributes", "README.md", "oxe/info.json", "pictures/oxe/demo.jpg"}
    assert Image.open(io.BytesIO(files["pictures/oxe/demo.jpg"])).size == (6 * 192, 144)
    card = files["README.md"].decode()
    header = yaml.safe_load(card.split("---\n")[1])
    assert (header["license"], header["task_categories"], header["viewer"]) == ("cc-by-4.0", ["robotics"], False)
    assert "| demo | 1.0.0 | pairs | 1 |" in card and "![Frames of demo](pictures/oxe/demo.jpg)" in card
    assert str(oxe_like) not in card
    expected = digest(make_loader(oxe_like, "demo", batch_size=4, seed=3).batch_at(1))
    assert digest(make_loader(summary["root"], "demo", batch_size=4, seed=3).batch_at(1)) == expected
    names = run_block(snippet(card).replace("num_workers=4", "num_workers=0"), {})
    assert names["batch"]["frames"].shape[0] == 64


def test_the_manifest_is_published_when_all_other_files_are_and_the_same_command_continues(
    hub: Hub, oxe_like: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commits: list[set[str]] = []
    hub.commit_failures = [0, 507]
    assert main([str(oxe_like), "me/robots"]) == EXIT_FAILED
    assert "run the same command again to continue" in capsys.readouterr().err
    interrupted = set(hub.repositories["me/robots"].files())
    assert "demo/1.0.0/train/steps.arrow" in interrupted and "demo/1.0.0/dataset.json" not in interrupted
    assert main([str(oxe_like), "me/robots"]) == 0
    commits = [set(files) for files in hub.repositories["me/robots"].commits.values()]
    assert {"demo/1.0.0/dataset.json", "README.md", "info.json"} <= commits[-1]
    assert not any("demo/1.0.0/dataset.json" in names for names in commits[:-1])
    assert "load it with ps.make_loader" in capsys.readouterr().out


def test_a_card_that_somebody_wrote_stays(hub: Hub, oxe_like: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(oxe_like), "me/robots"]) == 0
    repository = hub.repositories["me/robots"]
    repository.commit({**repository.files(), "README.md": b"# My words"})
    assert main([str(oxe_like), "me/robots"]) == 0
    assert repository.files()["README.md"] == b"# My words"
    assert "was left as it is" in capsys.readouterr().out


def test_without_permission_or_with_a_wrong_name_nothing_is_uploaded(
    hub: Hub, oxe_like: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments, message in (
        ([str(oxe_like), "robots"], "'robots': expected ORG/NAME"),
        ([str(oxe_like), "me/robots", "--folder", "../x"], r"--folder '../x': expected a folder"),
        ([str(tmp_path / "none"), "me/robots"], "no such folder"),
        (["s3://bucket/oxe", "me/robots"], "expected a local root"),
    ):
        assert main(arguments) == EXIT_USAGE
        assert message in capsys.readouterr().err
    monkeypatch.delenv("HF_TOKEN")
    assert main([str(oxe_like), "me/robots"]) == EXIT_USAGE
    assert "set HF_TOKEN or run `hf auth login` with a token that allows it" in capsys.readouterr().err
    assert hub.repositories == {}


def test_a_card_alone_is_written_without_the_hub(oxe_like: Path, tmp_path: Path) -> None:
    assert main([str(oxe_like), "me/robots", "--card-only", str(tmp_path / "README.md")]) == 0
    card = (tmp_path / "README.md").read_text()
    assert "ps.make_loader('hf://datasets/me/robots', 'demo', batch_size=64" in card
    assert "| demo | demo 1.0.0 | not stated |" in card
