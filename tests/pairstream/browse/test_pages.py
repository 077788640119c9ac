"""Every page does what it offers, in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from playwright.sync_api import expect

from pairstream.browse.browsed_root import BrowsedRoot
from pairstream.browse.episodes import EpisodeTable
from pairstream.browse.static import write_static
from stream import Select, make_loader
from stream.format.catalog import Catalog
from stream.format.index import open_index
from tests.fixtures.command import wait_until
from tests.installed import needs
from tests.pairstream.browse.running_site import PATIENCE_S, Site, end_site, start_site
from tests.stream.crafted_root import CraftedRoot, with_column
from tests.stream.index_root import write_dataset

pytestmark = [pytest.mark.long, needs("playwright")]


def expect_rows(page: Any, episodes: Iterable[int]) -> None:
    """Wait until the table shows these episodes in this order."""
    expect(page.locator("tbody tr td:nth-child(3)")).to_have_text(list(map(str, episodes)))


def test_the_overview_has_every_dataset_with_a_frame_and_leads_to_it(page: Any, site: Site, frames_root: Path) -> None:
    page.goto(site.address)
    expect(page.locator("#datasets tr")).to_have_count(30)
    row = page.locator("#datasets tr", has_text="bridge")
    expect(row.locator("td").nth(4)).to_have_text("12 s")
    expect(row.locator("td").nth(7)).to_have_text("5 Hz")
    page.wait_for_function("document.querySelector('#datasets img').naturalWidth == 64")
    row.get_by_text("train", exact=True).click()
    expect(page.locator("h1")).to_have_text("bridge, train")


def shown_datasets(page: Any) -> list[str]:
    """Return the names of the datasets that the overview shows, in order."""
    return page.locator("#datasets tbody tr:visible b").all_inner_texts()


def test_datasets_are_searched_filtered_and_sorted_and_the_address_keeps_it(page: Any, site: Site) -> None:
    page.goto(site.address)
    expect(page.locator("#clear")).to_be_hidden()
    page.get_by_label("robot").select_option("franka")
    expect(page.locator("#shown")).to_have_text("12 of 29 datasets")
    page.get_by_label("cameras").select_option("4")
    expect(page.locator("#shown")).to_have_text(re.compile("^[2-5] of 29"))
    page.get_by_role("button", name="rate").click()
    rates = [
        text.split(" ")[0] for text in page.locator("#datasets tbody tr:visible td:nth-child(8)").all_inner_texts()
    ]
    assert list(map(int, rates)) == sorted(map(int, rates))
    upward = shown_datasets(page)
    page.get_by_role("button", name="dataset").click()
    page.get_by_role("button", name="dataset").click()
    downward = shown_datasets(page)
    assert downward == sorted(upward, reverse=True)
    expect(page.locator("#datasets th", has_text="dataset")).to_have_attribute("aria-sort", "descending")
    page.reload()
    assert shown_datasets(page) == downward
    page.get_by_label("Search").fill("no such dataset")
    expect(page.locator("#shown")).to_have_text("No dataset matches.")
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#datasets tbody tr:visible")).to_have_count(29)
    page.get_by_label("Search").fill("BrIdGe")
    assert shown_datasets(page) == ["bridge"]


def test_datasets_without_a_rate_come_last_upward(page: Any, site: Site) -> None:
    page.goto(f"{site.address}?sort=rate")
    assert {"tidybot", "vima_converted_externally_to_rlds"} == set(shown_datasets(page)[-2:])


@pytest.mark.parametrize("address", ["", "dataset/bridge/train", "episode/droid/train/1", "mixture", "run", "marks"])
def test_pages_fit_a_phone_and_follow_the_colours_of_the_system(chromium: Any, site: Site, address: str) -> None:
    backgrounds = []
    for scheme in ("light", "dark"):
        page = chromium.new_page(viewport={"width": 420, "height": 900}, color_scheme=scheme)
        page.goto(f"{site.address}{address}")
        expect(page.locator("h1")).to_be_visible()
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") <= 420
        backgrounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        font = page.evaluate("getComputedStyle(document.querySelector('h1')).fontFamily")
        assert font == "system-ui, sans-serif"
        page.close()
    assert backgrounds == ["rgb(250, 250, 251)", "rgb(20, 23, 28)"]


def test_a_switch_opens_the_other_split(page: Any, site: Site) -> None:
    page.goto(f"{site.address}dataset/bridge/train")
    page.get_by_role("button", name="test", exact=True).click()
    expect(page.locator("h1")).to_have_text("bridge, test")
    page.get_by_text("About this dataset").click()
    expect(page.locator(".facts")).to_contain_text("5 Hz")


def test_an_episode_in_the_table_is_a_strip_of_pictures(page: Any, site: Site) -> None:
    page.goto(f"{site.address}dataset/bridge/train")
    pictures = page.locator("tbody tr").first.locator(".strip img")
    expect(pictures).to_have_count(5)
    steps = [re.search(r"/(\d+)\.jpg", picture.get_attribute("src") or "") for picture in pictures.all()]
    assert [int(step[1]) for step in steps if step] == [0, 2, 4, 6, 9]
    page.wait_for_function("[...document.querySelectorAll('.strip img')].every(image => image.naturalWidth == 64)")


def test_an_empty_table_says_what_to_do(page: Any, site: Site) -> None:
    page.goto(f"{site.address}dataset/bridge/train")
    page.get_by_label("Instruction, id or number").fill("no such text")
    expect(page.get_by_text("none matches: change the search or remove a filter")).to_be_visible()


def test_episodes_are_searched_filtered_and_sorted(page: Any, site: Site, frames_root: Path) -> None:
    page.goto(f"{site.address}dataset/bridge/train")
    expect(page.get_by_text("4 of 4 episodes")).to_be_visible()
    first = page.locator("tbody tr").first.locator("td").nth(4).inner_text()
    page.get_by_label("Instruction, id or number").fill(first)
    expect(page.get_by_text("1 of 4 episodes")).to_be_visible()
    expect_rows(page, [0])
    page.get_by_label("Instruction, id or number").fill("")
    expect(page.get_by_text("4 of 4 episodes")).to_be_visible()
    page.get_by_label("Filter").fill("episode")
    page.get_by_role("option", name="episode", exact=True).click()
    page.get_by_label("Value").fill("2")
    page.get_by_role("button", name="Add").click()
    expect(page.get_by_text("1 of 4 episodes")).to_be_visible()
    expect_rows(page, [2])
    page.locator(".q-chip__icon--remove").click()
    expect(page.get_by_text("4 of 4 episodes")).to_be_visible()
    page.get_by_role("columnheader", name="mean of motion").click()
    dataset = Catalog(frames_root).open("bridge")
    means = EpisodeTable(dataset, open_index(dataset, "train")).sort_key("mean of motion")
    upward = np.argsort(means, kind="stable").tolist()
    expect_rows(page, upward)
    page.get_by_role("columnheader", name="mean of motion").click()
    expect_rows(page, upward[::-1])
    assert upward != sorted(upward)
    page.reload()
    expect(page.locator("tbody tr").first.locator("td").nth(2)).to_have_text(str(upward[-1]))
    page.locator("tbody tr").first.locator("a").last.click()
    expect(page.locator("h1")).to_contain_text(f"episode {upward[-1] + 1} of 4")


def test_a_column_that_is_chosen_is_in_the_table_and_in_the_address(page: Any, site: Site) -> None:
    page.goto(f"{site.address}dataset/bridge/train")
    expect(page.get_by_role("columnheader", name="instruction")).to_be_visible()
    page.get_by_label("Columns").click()
    page.get_by_role("option", name="episode_id", exact=True).click()
    page.get_by_role("option", name="language", exact=True).click()
    expect(page.get_by_role("columnheader", name="episode_id")).to_be_visible()
    expect(page.get_by_role("columnheader", name="instruction")).to_have_count(0)
    page.reload()
    expect(page.get_by_role("columnheader", name="episode_id")).to_be_visible()
    expect(page.get_by_role("columnheader", name="instruction")).to_have_count(0)


_SLOW = """
import time
from pairstream.browse.episodes import EpisodeTable

def slowed(function, seconds):
    return lambda table, argument: (time.sleep(seconds(argument)), function(table, argument))[1]

EpisodeTable.find = slowed(EpisodeTable.find, lambda query: 2 if query.search == "1" else 0)
EpisodeTable.frequent_instructions = slowed(EpisodeTable.frequent_instructions, lambda count: 2)
"""


def test_a_slow_answer_does_not_replace_that_of_a_later_wish(page: Any, frames_root: Path, tmp_path: Path) -> None:
    site = start_site(frames_root, tmp_path / "marks.json", change=_SLOW)
    try:
        page.goto(f"{site.address}dataset/bridge/train")
        page.get_by_label("Instruction, id or number").fill("1")
        page.wait_for_function("location.search.includes('%221%22')")
        page.get_by_label("Instruction, id or number").fill("3")
        expect(page.locator("tbody tr").first.locator("td").nth(2)).to_have_text("3")
        page.wait_for_timeout(2500)
        expect_rows(page, [3])
        page.get_by_role("tab", name="Instructions").click()
        page.wait_for_function("location.search.includes('Instructions')")
        page.get_by_role("tab", name="Lengths").click()
        expect(page.get_by_text("40 in all")).to_be_visible()
        page.wait_for_timeout(2500)
        expect(page.locator("#instructions")).to_have_count(0)
    finally:
        end_site(site)


def test_a_strip_of_pictures_leads_to_its_episode(page: Any, site: Site) -> None:
    page.goto(f"{site.address}dataset/bridge/train")
    page.get_by_role("link", name="play episode 2").click()
    expect(page.locator("h1")).to_have_text("bridge, train, episode 3 of 4")


def test_a_long_table_has_pages_that_keep_the_order(page: Any, tmp_path: Path) -> None:
    write_dataset(tmp_path / "root", "demo", {"train": [[3] * 45]})
    site = start_site(tmp_path / "root", tmp_path / "marks.json")
    try:
        page.goto(f"{site.address}dataset/demo/train")
        expect(page.get_by_text("45 of 45 episodes")).to_be_visible()
        expect_rows(page, range(20))
        page.get_by_role("columnheader", name="episode").first.click()
        expect(page.locator("tbody tr").first.locator("td").nth(2)).to_have_text("44")
        page.get_by_role("button", name="next page").click()
        expect_rows(page, range(24, 4, -1))
    finally:
        end_site(site)


def test_a_wrong_filter_is_one_sentence(page: Any, site: Site) -> None:
    state = quote(json.dumps({"where": [["language", "<", 3]]}))
    page.goto(f"{site.address}dataset/bridge/train?state={state}")
    expect(page.get_by_text("cannot compare texts by < with 3")).to_be_visible()


def test_marked_episodes_are_left_out_of_a_loader(page: Any, site: Site, frames_root: Path) -> None:
    page.goto(f"{site.address}dataset/bridge/train")
    page.get_by_role("checkbox", name="mark 1").click()
    page.goto(f"{site.address}marks")
    expect(page.get_by_text(re.compile("^1 marked episode,"))).to_be_visible()
    with page.expect_download() as saved:
        page.get_by_text("Download").click()
    marks = json.loads(Path(saved.value.path()).read_text())
    assert marks == json.loads(site.marks.read_text())
    loader = make_loader(frames_root, "bridge", batch_size=4, split="train", select=Select(episodes=marks))
    assert loader.describe()["bridge"]["remaining_episodes"] == 3
    page.get_by_text("keep only these").click()
    assert wait_until(lambda: '"keep"' in site.marks.read_text(), seconds=PATIENCE_S)
    loader = make_loader(frames_root, "bridge", batch_size=4, split="train", select=Select(episodes=str(site.marks)))
    assert loader.describe()["bridge"]["remaining_episodes"] == 1
    page.get_by_role("button", name="unmark").click()
    expect(page.get_by_text(re.compile("^0 marked episodes"))).to_be_visible()
    expect(page.get_by_text("Nothing is marked yet")).to_be_visible()
    expect(page.get_by_role("button", name="Download")).to_be_disabled()
    assert json.loads(site.marks.read_text()) == {}


def test_histograms_stand_beside_those_of_other_datasets(page: Any, site: Site) -> None:
    page.goto(f"{site.address}dataset/bridge/train?tab=Histograms")
    expect(page.locator("svg text", has_text="yaw")).to_be_visible()
    expect(page.locator("svg text", has_text="jaco_play")).to_be_visible()
    page.get_by_label("Vector").click()
    page.get_by_role("option", name="action, space oxe").click()
    expect(page.locator("svg text", has_text="gripper")).to_be_visible()
    page.get_by_label("Values").click()
    page.get_by_role("option", name="normalised").click()
    expect(page.locator("svg text", has_text=re.compile("^-1$")).first).to_be_visible()
    page.get_by_label("Beside").click()
    page.get_by_role("option", name="jaco_play").click()
    expect(page.get_by_text("27 datasets")).to_be_visible()
    expect(page.locator("svg text", has_text="jaco_play")).to_have_count(0)


def test_lengths_and_instructions_are_counted(page: Any, site: Site) -> None:
    page.goto(f"{site.address}dataset/bridge/train?tab=Lengths")
    expect(page.get_by_text("40 in all")).to_be_visible()
    assert page.locator("svg .tick").all_text_contents() == ["episodes", "0", "2", "4", "10", "11", "steps"]
    page.get_by_role("tab", name="Instructions").click()
    first = page.locator("#instructions a").first
    said = first.inner_text()
    first.click()
    expect(page.locator("tbody tr").first).to_contain_text(said)


def test_a_mixture_shows_its_schedule_and_what_a_filter_leaves(page: Any, site: Site, frames_root: Path) -> None:
    page.goto(f"{site.address}mixture")
    expect(page.locator("#members tr")).to_have_count(30)
    page.get_by_label("Mixture").fill('[[100, {"bridge": 1}], [null, {"bridge": 1, "rt1": 3}]]')
    page.get_by_label("Where").fill('[["step", ">", 1]]')
    page.get_by_role("button", name="Open").click()
    expect(page.locator("#members tr")).to_have_count(3)
    cells = page.locator("#members tr", has_text="bridge").locator("td").all_inner_texts()
    summary = make_loader(
        frames_root, "bridge", batch_size=4, split="train", select=Select(where=[("step", ">", 1)])
    ).describe()
    assert cells[1:4] == ["100.00%", "25.00%", f"{summary['bridge']['samples']:,}"]
    bars = page.locator("#members td.share").evaluate_all(
        "cells => cells.map(c => c.style.getPropertyValue('--share'))"
    )
    assert list(map(float, bars)) == [1, 0.333, 0, 1]
    assert "by where: step > 1" in cells[6]
    page.get_by_label("Where").fill("[")
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_text("is not JSON")).to_be_visible()


def test_a_mixture_leaves_marked_episodes_out_and_keeps_rows_without_a_column(page: Any, site: Site) -> None:
    page.request.post(f"{site.address}mark/kuka/train/1", data={"marked": True})
    where = quote(json.dumps([["aspects/success", "==", True]]))
    page.goto(f"{site.address}mixture?mixture=kuka,rt1&where={where}")
    expect(page.get_by_text("no column 'aspects/success' in kuka")).to_be_visible()
    page.get_by_label("On missing column").click()
    page.get_by_role("option", name="keep").click()
    page.get_by_role("checkbox", name="Marks").click()
    page.get_by_role("button", name="Open").click()
    expect(page.locator("#members tr", has_text="kuka")).to_contain_text("3 of 4")
    page.request.post(f"{site.address}mark/kuka/train/1", data={"marked": False})


def test_findings_of_the_doctor_lead_to_their_episodes(page: Any, tmp_path: Path, frames_root: Path) -> None:
    crafted = CraftedRoot(frames_root, tmp_path / "root")
    table = crafted.table("steps")
    values = table.column("action").combine_chunks()
    numbers = values.values.to_numpy().copy()
    numbers[values.type.list_size * 3] = float("nan")
    import pyarrow as pa

    bad = pa.FixedSizeListArray.from_arrays(pa.array(numbers), values.type.list_size)
    crafted.write("steps", with_column(table, "action", bad))
    site = start_site(crafted.root, tmp_path / "marks.json")
    try:
        page.goto(f"{site.address}dataset/bridge/train?tab=Findings")
        page.get_by_role("button", name="Look for mistakes").click()
        row = page.locator("#findings tr", has_text="nonfinite_action")
        expect(row).to_be_visible(timeout=60_000)
        expect(row.locator("a")).to_have_attribute("href", "/episode/bridge/train/0?step=3")
        page.set_viewport_size({"width": 420, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= 420
        assert page.locator("#findings td").last.evaluate("cell => cell.offsetWidth") > 300
        page.set_viewport_size({"width": 1400, "height": 900})
        page.get_by_role("tab", name="Episodes").click()
        expect(page.locator("tbody tr").first).to_contain_text("nonfinite_action")
    finally:
        end_site(site)


def test_files_of_a_root_open_without_a_server(page: Any, tmp_path: Path, frames_root: Path) -> None:
    opened = BrowsedRoot(frames_root, marks=tmp_path / "marks.json")
    chosen = [("bridge", "train", 1), ("droid", "train", 0)]
    write_static(opened, tmp_path / "files", episodes=chosen, doctor=False, most_bytes=300_000)
    page.goto(f"file://{tmp_path / 'files' / 'index.html'}")
    page.get_by_label("Search").fill("droid")
    assert shown_datasets(page) == ["droid"]
    page.get_by_role("link", name="droid, train, episode 1").click()
    expect(page.locator("canvas[data-camera][data-state=shown]")).to_have_count(3)
    page.get_by_role("button", name="play").click()
    page.wait_for_function("document.querySelector('canvas').dataset.step > 3")
