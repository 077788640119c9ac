"""Tables of the pages escape every text of the data."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pairstream.browse.facts import codec_text, describe_facts, notes_of
from pairstream.browse.markup import findings_html, overview_html
from stream.format.catalog import Catalog
from stream.format.frame import StoredCamera
from tests.stream.index_root import write_dataset

EVIL = '<script>alert(1)</script> "put" &'


def test_findings_escape_what_the_data_say_and_show_the_frame_of_an_episode() -> None:
    examples = [{"text": EVIL, "instruction": EVIL, "episode": 3, "step": 7}]
    examples += [{"text": EVIL, "instruction": "", "episode": None, "step": 0}]
    finding: dict[str, Any] = {
        "dataset": "bridge",
        "split": None,
        "rule": "nonfinite_action",
        "severity": "error",
        "meaning": EVIL,
    }
    finding |= {"count": 2, "unit": "episodes", "examples": examples}
    page = findings_html([finding], picture=lambda *_: "a.jpg?x=<", address=lambda _, example: f"/at/{example['step']}")
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 4
    assert page.count("<img") == 1
    assert 'href="/at/7"' in page


def test_no_findings_are_said() -> None:
    assert "Nothing was found" in findings_html([], picture=lambda *_: "", address=lambda *_: "")


def test_the_overview_says_the_codec_of_each_dataset(tmp_path: Path) -> None:
    write_dataset(tmp_path, "demo", {"train": [[3]]})
    facts = describe_facts(Catalog(tmp_path).open("demo"))
    assert facts["codec"] == notes_of(facts)["codec"] == "jpeg"
    page = overview_html([facts | {"codec": "h264", "description": EVIL}], {"broken": EVIL}, picture=lambda _: "")
    assert "<script" not in page
    head, row, broken = page.split("<tr")[1:]
    assert (
        head.count("<th") + head.count("<td")
        == row.count("<td")
        == 2 + int(broken.partition('colspan="')[2].partition('"')[0])
    )
    assert ">h264</td>" in row


def test_the_overview_leaves_out_columns_in_which_all_datasets_are_as_usual(tmp_path: Path) -> None:
    write_dataset(tmp_path, "demo", {"train": [[3]]})
    page = overview_html([describe_facts(Catalog(tmp_path).open("demo"))], {}, picture=lambda _: "")
    assert "left out" not in page and "jpeg" not in page


def test_filters_offer_each_value_once_in_natural_order_and_one_licence_for_its_spellings(tmp_path: Path) -> None:
    write_dataset(tmp_path, "demo", {"train": [[3]]})
    facts = describe_facts(Catalog(tmp_path).open("demo"))
    licences = ("CC BY 4.0 [README]", "cc-by-4.0", "mit")
    rows = [facts | {"rate": rate, "license": text} for rate, text in zip((10.0, 5.0, 10.0), licences, strict=True)]
    page = overview_html(rows, {}, picture=lambda _: "")
    assert re.findall(r'<option value="([^"]*)">', page) == ["", "5 Hz", "10 Hz", "", "CC BY 4.0", "MIT"]


def test_codecs_that_differ_are_told_by_camera() -> None:
    front = StoredCamera("front", "primary", ((8, 8),), codec="av1", gop=4)
    depth = StoredCamera("depth", "primary", ((8, 8),), is_depth=True)
    assert codec_text([front, front]) == "av1 (4 frames a chunk)"
    assert codec_text([front, depth]) == "front av1 (4 frames a chunk), depth depth"


def test_the_overview_has_no_heading_without_text(tmp_path: Path) -> None:
    write_dataset(tmp_path, "demo", {"train": [[3]]})
    facts = describe_facts(Catalog(tmp_path).open("demo"))
    page = overview_html([facts], {}, picture=lambda _: "a.jpg")
    headings = re.findall(r"<th(?: [^>]*)?>(.*?)</th>", page)
    assert headings[0] == "<button>dataset</button>" and all(re.sub("<[^>]*>", "", heading) for heading in headings)
