"""An episode plays, is scrubbed, marked and linked, and shows a damaged frame as damaged, in a real browser."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import expect

from pairstream.browse.browsed_root import BrowsedRoot
from pairstream.view.tracks import open_tracks
from stream.format.catalog import Catalog
from stream.format.index import open_index
from tests.installed import needs
from tests.pairstream.browse.running_site import Site, end_site, start_site

pytestmark = [pytest.mark.long, needs("playwright")]
SHOWN = "canvas[data-camera][data-state=shown]"
STEP = """at => [...document.querySelectorAll('canvas[data-camera]')].every(each =>
  each.dataset.step == at && each.dataset.state !== 'loading')"""

LOADED = """count => performance.getEntriesByType('resource')
  .filter(entry => entry.name.includes('/frame/') && entry.responseEnd).length >= count"""


@pytest.fixture
def opened(page: Any, site: Site) -> Any:
    """The page of an episode of three cameras, all of them shown."""
    page.goto(f"{site.address}episode/droid/train/1")
    expect(page.locator(SHOWN)).to_have_count(3)
    return page


def at_step(page: Any, step: int) -> None:
    """Wait until all cameras show a step."""
    page.wait_for_function(STEP, arg=step)


def shown_pixels(page: Any) -> list[str]:
    script = "[...document.querySelectorAll('canvas[data-camera]')].map(each => each.toDataURL())"
    pixel_hashes: list[str] = page.evaluate(script)
    return pixel_hashes


def test_it_plays_all_cameras_to_the_end_at_the_rate_of_the_dataset(opened: Any, frames_root: Path) -> None:
    last = opened.evaluate("Number(document.querySelector('input[type=range]').max)")
    first = shown_pixels(opened)
    began = opened.evaluate("performance.now()")
    opened.keyboard.press(" ")
    at_step(opened, last)
    seconds = (opened.evaluate("performance.now()") - began) / 1000
    assert seconds >= 0.9 * last / 15
    assert all(before != after for before, after in zip(first, shown_pixels(opened), strict=True))
    expect(opened.get_by_role("button", name="play")).to_be_visible()
    opened.wait_for_url(f"**step={last}")


def test_frames_are_asked_for_once(page: Any, site: Site) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/frame/" in request.url else None)
    page.goto(f"{site.address}episode/bridge/train/1")
    expect(page.locator(SHOWN)).to_have_count(1)
    last = page.evaluate("Number(document.querySelector('input[type=range]').max)")
    for key, step in (("End", last), ("Home", 0), ("End", last)):
        page.keyboard.press(key)
        at_step(page, step)
    page.wait_for_function(LOADED, arg=last + 1)
    assert len(asked) == len(set(asked)) == last + 1


def test_keys_step_and_change_the_episode(opened: Any) -> None:
    for key, step in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("Home", 0)):
        opened.keyboard.press(key)
        at_step(opened, step)
    opened.keyboard.press("n")
    opened.wait_for_url("**/episode/droid/train/2**")
    expect(opened.locator(SHOWN)).to_have_count(3)
    opened.keyboard.press("p")
    opened.wait_for_url("**/episode/droid/train/1**")


def test_play_pauses_at_its_step(opened: Any) -> None:
    opened.clock.install(time=0)
    opened.clock.pause_at(3_600_000)
    opened.get_by_label("speed").select_option("0.25")
    opened.get_by_role("button", name="play").click()
    opened.clock.run_for(600)
    opened.get_by_role("button", name="pause").click()
    # A step takes 267 ms at 15 Hz and a quarter of the speed.
    at_step(opened, 2)
    opened.clock.run_for(600)
    at_step(opened, 2)
    opened.get_by_role("button", name="play").click()
    opened.clock.run_for(300)
    at_step(opened, 3)


def test_the_slider_seeks_and_shift_steps_by_ten(opened: Any) -> None:
    slider = opened.get_by_label("step", exact=True)
    slider.fill("4")
    at_step(opened, 4)
    last = int(slider.get_attribute("max"))
    opened.keyboard.press("Shift+ArrowRight")
    at_step(opened, min(14, last))
    opened.keyboard.press("Shift+ArrowLeft")
    at_step(opened, max(0, min(14, last) - 10))


def test_a_closed_section_opens_with_its_curves(opened: Any) -> None:
    section = opened.locator("details", has_text="action_oxe (canonical)")
    expect(section.locator("canvas")).to_have_count(0)
    section.locator("summary").click()
    expect(section.locator("canvas").first).to_be_visible()
    # 300 is the width of a canvas that nothing was drawn on.
    opened.wait_for_function("canvas => canvas.width > 300", arg=section.locator("canvas").first.element_handle())


def test_buttons_lead_to_the_neighbours_and_to_all_episodes(opened: Any) -> None:
    opened.get_by_role("link", name="next ›").click()
    opened.wait_for_url("**/episode/droid/train/2**")
    opened.get_by_role("link", name="‹ previous").click()
    opened.wait_for_url("**/episode/droid/train/1**")
    opened.get_by_role("link", name="all episodes of droid, train").click()
    expect(opened.locator("h1")).to_have_text("droid, train")


def test_a_click_on_a_curve_seeks_and_the_link_opens_the_same_place(opened: Any) -> None:
    curve = opened.locator(".ps-row canvas").first
    box = curve.bounding_box()
    opened.mouse.click(box["x"] + box["width"] * 0.55, box["y"] + 5)
    step = opened.evaluate("Number(document.querySelector('input[type=range]').value)")
    assert step > 2
    opened.wait_for_url(f"**step={step}")
    address = opened.locator("a", has_text="link").get_attribute("href")
    at_step(opened, step)
    pixels = shown_pixels(opened)
    opened.goto("about:blank")
    opened.goto(address)
    expect(opened.locator(SHOWN)).to_have_count(3)
    at_step(opened, step)
    assert shown_pixels(opened) == pixels


def test_the_cursor_is_in_the_strips_only_and_the_axis_has_the_steps(opened: Any) -> None:
    opened.keyboard.press("End")
    last = opened.evaluate("Number(document.querySelector('input[type=range]').max)")
    at_step(opened, last)
    lines = opened.evaluate("""[...document.querySelectorAll('.ps-lines *')]
        .map(one => [one, getComputedStyle(one, '::after')]).filter(([_, line]) => line.position === 'absolute')
        .map(([one, line]) => [one.className.split(' ')[0], parseFloat(line.left) / one.clientWidth])""")
    assert {name for name, _ in lines} == {"ps-strip"}
    assert [share for _, share in lines] == pytest.approx([(last + 0.5) / (last + 1)] * len(lines), abs=0.02)
    assert opened.locator(".ps-axis i").all_inner_texts()[:2] == ["0 (0 s)", "1 (0.0667 s)"]


def test_cameras_fill_the_width_and_facts_are_a_table(opened: Any, frames_root: Path) -> None:
    boxes = [canvas.bounding_box() for canvas in opened.locator("canvas[data-camera]").all()]
    assert sum(box["width"] for box in boxes) > 0.9 * (1400 - 48)
    assert all(box["width"] == pytest.approx(box["height"], abs=1) for box in boxes)
    dataset = Catalog(frames_root).open("droid")
    facts = open_tracks(dataset, open_index(dataset, "train"), 1).facts
    row = opened.locator(".facts > div", has=opened.get_by_text("episode_id", exact=True))
    expect(row.locator("dd")).to_have_text(facts["episode_id"])
    expect(opened.locator(".facts > div").first.locator("dd")).to_have_text("droid/train/1")
    expect(opened.locator("h1")).to_have_text("droid, train, episode 2 of 4")


def test_a_gripper_changes_in_steps_and_a_camera_that_stays_calm_has_no_alarm(page: Any, site: Site) -> None:
    text = page.goto(f"{site.address}episode/bridge/train/1").text()
    expect(page.locator(SHOWN)).to_have_count(1)
    expect(page.get_by_role("alert")).to_have_count(0)
    curve = json.loads(text.partition("pairstreamPlayer('player', ")[2].partition(', {"step"')[0])["curves"][0]
    assert [curve["dims"][dim] for dim in curve["stepped"]] == [name for name in curve["dims"] if "/" in name]


def test_curves_and_bands_have_their_names_and_values(opened: Any, frames_root: Path) -> None:
    dataset = Catalog(frames_root).open("droid")
    tracks = open_tracks(dataset, open_index(dataset, "train"), 1)
    action = next(tracks.curves())
    opened.keyboard.press("ArrowRight")
    at_step(opened, 1)
    section = opened.locator("details", has_text="action (as the dataset has it)").first
    rows = section.locator(".ps-row")
    assert [row.locator("span").first.inner_text() for row in rows.all()] == list(action.dims)
    values = [float(row.locator("span").last.inner_text()) for row in rows.all()]
    assert values == pytest.approx(action.values[1].tolist(), rel=1e-3)
    expect(opened.locator(".ps-row", has_text="is_first").locator("span").last).to_have_text("false")


def test_a_marked_episode_is_in_the_file_of_marks(opened: Any, site: Site, frames_root: Path) -> None:
    opened.keyboard.press("m")
    expect(opened.get_by_role("button", name="marked")).to_be_visible()
    dataset = Catalog(frames_root).open("droid")
    (marked,) = open_index(dataset, "train").episodes.take_texts("episode_id", np.array([1]))
    assert marked in json.loads(site.marks.read_text())["droid"]["leave_out"]
    opened.reload()
    opened.get_by_role("button", name="marked").click()
    expect(opened.get_by_role("button", name="mark", exact=True)).to_be_visible()


@pytest.fixture
def damaged(frames_root: Path, tmp_path: Path) -> Iterator[Site]:
    """A site whose bridge has a wrong byte in the frame of step 3 of episode 0."""
    root = tmp_path / "root"
    shutil.copytree(frames_root / "bridge", root / "bridge")
    index = BrowsedRoot(root, marks=tmp_path / "none.json").index("bridge", "train")
    shard = Path(index.record_path(0))
    content = bytearray(shard.read_bytes())
    content[int(index.records.array("position")[3]) + 100] ^= 0xFF
    shard.write_bytes(content)
    damaged_site = start_site(root, tmp_path / "marks.json")
    yield damaged_site
    end_site(damaged_site)


def test_a_damaged_frame_shows_as_damaged_and_the_rest_plays(page: Any, damaged: Site) -> None:
    page.goto(f"{damaged.address}episode/bridge/train/0?step=3")
    expect(page.locator("canvas[data-camera][data-state=damaged]")).to_have_count(1)
    expect(page.locator("figcaption")).to_contain_text("record 3 (step 3 of camera image): cannot be read")
    page.keyboard.press("Home")
    page.keyboard.press(" ")
    at_step(page, page.evaluate("Number(document.querySelector('input[type=range]').max)"))
    expect(page.locator(SHOWN)).to_have_count(1)


@pytest.mark.parametrize(
    ("address", "status", "text"),
    [
        ("episode/bridgee/train/0", 404, "did you mean 'bridge'"),
        ("episode/bridge/trian/0", 404, "no split 'trian'"),
        ("episode/bridge/train/99", 404, "episode 99 of"),
        ("episode/bridge/train/first", 422, "number='first': Input should be a valid integer"),
        ("run?step=first", 422, "step='first': Input should be a valid integer"),
        ("episodes", 404, "/episodes: no such page"),
    ],
)
def test_what_does_not_exist_is_a_page_of_one_sentence_with_ways_on(
    page: Any, site: Site, address: str, status: int, text: str
) -> None:
    assert page.goto(f"{site.address}{address}").status == status
    expect(page.locator("#error")).to_contain_text(text)
    page.get_by_role("link", name="Overview").click()
    expect(page.locator("#datasets")).to_be_visible()
