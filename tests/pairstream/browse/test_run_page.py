"""A step of a run shows its rows, marks those with NaN, and leads into their episodes, in a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from playwright.sync_api import expect

from pairstream.replay.batch_html import write_page
from stream import make_loader
from tests.installed import needs
from tests.pairstream.browse.running_site import Site, end_site, start_site
from tests.stream.crafted_root import CraftedRoot, with_column

pytestmark = [pytest.mark.long, needs("playwright")]
EPISODE, FIRST = 1, 4
"""Episode and step from which the gripper is NaN for two steps."""


@pytest.fixture(scope="module")
def root(oxe_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with NaN in actions, and the loader.json of a run beside it."""
    folder = tmp_path_factory.mktemp("run")
    crafted = CraftedRoot(oxe_root, folder / "oxe")
    shutil.copytree(oxe_root / "rt1", crafted.root / "rt1")
    steps = crafted.table("steps")
    action = np.stack(steps["action"].to_numpy()).astype(np.float32)
    begin = steps["episode"].to_pylist().index(EPISODE)
    action[begin + FIRST : begin + FIRST + 2, 6] = np.nan
    values = pa.FixedSizeListArray.from_arrays(pa.array(action.ravel()), action.shape[1])
    crafted.write("steps", with_column(steps, "action", values))
    (folder / "run").mkdir()
    make_loader(crafted.root, ["bridge", "rt1"], batch_size=8, seed=1).save(folder / "run" / "loader.json")
    return crafted.root


@pytest.fixture(scope="module")
def site(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    started_site = start_site(root, tmp_path_factory.mktemp("marks") / "marks.json")
    yield started_site
    end_site(started_site)


def bad_step(root: Path) -> tuple[int, list[int]]:
    """Return the first step with NaN, and its rows."""
    loader = make_loader(root, ["bridge", "rt1"], batch_size=8, seed=1)
    for step in range(100):
        if len(rows := np.flatnonzero(np.isnan(loader.batch_at(step)["action"]).any(axis=(1, 2)))):
            return step, rows.tolist()
    raise AssertionError("no step has NaN")


def test_from_the_run_beside_the_root_to_the_nan_in_its_episode(page: Any, site: Site, root: Path) -> None:
    step, rows = bad_step(root)
    page.goto(site.address)
    page.get_by_role("link", name="Run", exact=True).click()
    page.get_by_role("link", name="run/loader.json").click()
    page.get_by_label("step").fill(str(step))
    page.get_by_role("button", name="show").click()
    page.wait_for_url(f"**step={step}**")
    bad = page.locator(".batch-row.bad")
    expect(bad).to_have_count(len(rows))
    assert [int(row_element.get_attribute("data-row")) for row_element in bad.all()] == rows
    expect(bad.first).to_contain_text("NaN in")
    expect(page.locator(".batch-row")).to_have_count(8)
    expect(page.locator(".batch-row").first).to_have_class("batch-row bad")
    bad.first.get_by_role("link").last.click()
    page.wait_for_url(f"**/episode/bridge/train/{EPISODE}?**")
    expect(page.locator("canvas[data-camera][data-state=shown]")).to_have_count(1)
    expect(page.locator(".ps-window")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("NaN or infinity in action: action/open_gripper[0]")
    page.keyboard.press("Home")
    for _ in range(FIRST):
        page.keyboard.press("ArrowRight")
    page.wait_for_function("at => document.querySelector('canvas[data-camera]').dataset.step == at", arg=FIRST)
    expect(page.locator(".ps-row span.ps-fault").first).to_have_text("nan")


def test_an_episode_opens_at_its_first_nan_and_a_click_returns_there(page: Any, site: Site) -> None:
    page.goto(f"{site.address}episode/bridge/train/{EPISODE}")
    at_nan = "at => document.querySelector('canvas[data-camera]').dataset.step == at"
    page.wait_for_function(at_nan, arg=FIRST)
    expect(page.locator(".ps-row span.ps-fault").first).to_have_text("nan")
    page.keyboard.press("Home")
    page.wait_for_function(at_nan, arg=0)
    page.get_by_role("button", name=f"step {FIRST}").click()
    page.wait_for_function(at_nan, arg=FIRST)
    page.goto(f"{site.address}episode/bridge/train/{EPISODE}?step=0")
    page.wait_for_function(at_nan, arg=0)


def test_texts_of_a_row_are_text_and_its_curves_are_drawn_with_their_numbers(page: Any, site: Site, root: Path) -> None:
    loader = make_loader(root, ["bridge", "rt1"], batch_size=8, seed=1)
    page.goto(f"{site.address}run?loader={root.parent / 'run' / 'loader.json'}&step=1")
    batch, ref = loader.batch_at(1), loader.describe(1)[2]
    row = page.locator(".batch-row[data-row='2']")
    expect(row).to_contain_text(ref.language)
    num_dims = int(batch["action_mask"][2].any(axis=0).sum())
    expect(row.locator(".batch-plots svg")).to_have_count(num_dims)
    largest = abs(batch["action"][2][batch["action_mask"][2].any(axis=1), 0]).max()
    expect(row.locator(".batch-plots figcaption").first).to_contain_text(f"{largest:.2g}")


def test_a_step_without_bad_values_says_so_and_leads_to_its_neighbours(page: Any, site: Site, root: Path) -> None:
    run = root.parent / "run" / "loader.json"
    step = next(candidate for candidate in range(100) if candidate != bad_step(root)[0])
    page.goto(f"{site.address}run?loader={run}&step={step}")
    expect(page.locator("#bad")).to_contain_text("no NaN")
    page.get_by_role("link", name=f"step {step + 1} ›").click()
    page.wait_for_url(f"**step={step + 1}")


def test_a_large_batch_has_further_pages_of_rows(page: Any, site: Site, root: Path) -> None:
    run = root.parent / "large.json"
    make_loader(root, ["bridge", "rt1"], batch_size=70, seed=1).save(run)
    page.goto(f"{site.address}run?loader={run}")
    expect(page.locator(".batch-row")).to_have_count(64)
    shown = set(page.locator(".batch-row").evaluate_all("rows => rows.map(row => Number(row.dataset.row))"))
    page.get_by_role("link", name="more rows").click()
    expect(page.locator(".batch-row")).to_have_count(6)
    shown |= set(page.locator(".batch-row").evaluate_all("rows => rows.map(row => Number(row.dataset.row))"))
    assert shown == set(range(70))


def test_the_page_of_replay_opens_from_the_disk_and_fits_a_phone(page: Any, root: Path, tmp_path: Path) -> None:
    loader = make_loader(root, ["bridge", "rt1"], batch_size=8, seed=1)
    step, rows = bad_step(root)
    batch, refs = loader.batch_at(step), loader.describe(step)
    path = write_page(tmp_path, "step", batch, refs, title=f"step {step}", faults={rows[0]: ["NaN in action"]})
    page.set_viewport_size({"width": 420, "height": 900})
    page.goto(f"file://{path}")
    expect(page.locator(".batch-row")).to_have_count(8)
    expect(page.locator(".batch-row.bad")).to_contain_text("NaN in action")
    page.wait_for_function("[...document.images].every(image => image.naturalWidth == 64)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 420


def test_a_run_of_another_root_leads_to_the_same_episodes_here_or_nowhere(
    page: Any, site: Site, frames_root: Path, tmp_path: Path
) -> None:
    for name, links in (("rt1", 8), ("droid", 0)):
        make_loader(frames_root, name, batch_size=4, frames=[0]).save(tmp_path / "loader.json")
        page.goto(f"{site.address}run?loader={tmp_path / 'loader.json'}")
        expect(page.locator(".batch-row")).to_have_count(4)
        expect(page.get_by_text(f"The run reads {frames_root}")).to_be_visible()
        expect(page.locator(".batch-row a")).to_have_count(links)


def test_what_is_no_run_is_a_page_of_one_sentence(page: Any, site: Site, frames_root: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong.json").write_text("{}")
    make_loader(frames_root, "droid", batch_size=4, frames=[0]).save(tmp_path / "loader.json")
    moved_run = (tmp_path / "loader.json").read_text().replace(str(frames_root.resolve()), "/none")
    (tmp_path / "gone.json").write_text(moved_run)
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "binary.json").write_bytes(bytes(range(256)))
    (tmp_path / "fields.json").write_text(moved_run.replace('"members"', '"member"'))
    messages = {
        **{"none": "none.json", "wrong": "wrong.json", "gone": "/none: no such folder"},
        "folder": "folder.json: cannot be read (Is a directory)",
        **{"binary": "binary.json: not a JSON file", "fields": "fields.json: field missing"},
    }
    for name, text in messages.items():
        response = page.goto(f"{site.address}run?loader={tmp_path / name}.json")
        assert response.status == 404
        expect(page.locator("#error")).to_contain_text(text)
