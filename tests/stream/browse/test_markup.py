"""Tables of the pages escape every text of the data."""

from __future__ import annotations

from stream.browse.doctor import Finding, Place
from stream.browse.markup import findings_html

EVIL = '<script>alert(1)</script> "put" &'


def test_findings_escape_what_the_data_say_and_show_the_frame_of_an_episode() -> None:
    places = (Place(EVIL, EVIL, 3, 7), Place(EVIL, "", None, 0))
    finding = Finding("bridge", "train", "nonfinite_action", "error", EVIL, "2 episodes", places)
    page = findings_html([finding], picture=lambda *_: "a.jpg?x=<", address=lambda _, place: f"/at/{place.step}")
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 4
    assert page.count("<img") == 1
    assert 'href="/at/7"' in page


def test_no_findings_are_said() -> None:
    assert "Nothing was found" in findings_html([], picture=lambda *_: "", address=lambda *_: "")
