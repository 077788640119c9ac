"""Screenshots of the browser: ``python -m docs.screenshots ROOT`` writes the pictures of the pages in this folder.

ROOT is a conversion of the 29 datasets in the layout ``frames``, such as ``build/demo/frames``. A copy of it gets a
NaN, so that the pages have something to show. ``--all DIR`` writes every page at two widths, in light and dark, to DIR.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
from playwright.sync_api import sync_playwright

from stream import make_loader
from tests.pairstream.browse.running_site import end_site, start_site
from tests.stream.crafted_root import CraftedRoot, with_column

DOCS = Path(__file__).parent
WIDTHS = (1400, 420)
_BAD_EPISODE, _BAD_STEPS, _GRIPPER = 1, slice(3, 5), 6
_MIXTURE = '[[100, {"bridge": 2, "rt1": 1}], [400, {"bridge": 1, "rt1": 2, "droid": 2}], [null, {"rt1": 1, "kuka": 3}]]'
_EMPTY = "text=/^0 of /"


class Shot(NamedTuple):
    """A page to show: address, text or element to wait for, and height in docs; 0 for a page that docs lack."""

    address: str
    shown: str
    height: int = 0


def find_shots(root: Path, run: Path, step: int) -> dict[str, Shot]:
    """Return the pages by the name of their picture."""
    conditions = [["episodes.num_steps", ">", 4]]
    state = json.dumps({"search": "the", "where": conditions, "sort": "episode"})
    empty_state = json.dumps({"search": "nothing"})
    mixture = urlencode({"mixture": _MIXTURE, "where": '[["step", ">", 1]]'})
    return {
        "overview": Shot("", "#datasets img", 760),
        "dataset": Shot(f"dataset/bridge/train?{urlencode({'state': state})}", "tbody img", 620),
        "histograms": Shot("dataset/bridge/train?tab=Histograms", "svg", 760),
        "lengths": Shot("dataset/bridge/train?tab=Lengths", "svg"),
        "instructions": Shot("dataset/bridge/train?tab=Instructions", "#instructions"),
        "findings": Shot("dataset/bridge/train?tab=Findings", "text=Look for mistakes"),
        "episode": Shot("episode/fmb/train/1?step=2&window=2", "canvas[data-state=shown]", 900),
        "nan": Shot(f"episode/bridge/train/{_BAD_EPISODE}", "canvas[data-state=shown]"),
        "mixture": Shot(f"mixture?{mixture}", "#members", 560),
        "mixture-all": Shot("mixture", "#members"),
        "runs": Shot("run", "#runs"),
        "run": Shot(f"run?{urlencode({'loader': run, 'step': step})}", ".batch-row", 760),
        "doctor": Shot("doctor", "text=Look for mistakes"),
        "marks": Shot("marks", "text=marks.json"),
        "overview-empty": Shot("?search=nothing", "text=No dataset matches"),
        "dataset-empty": Shot(f"dataset/bridge/train?{urlencode({'state': empty_state})}", _EMPTY),
        "mixture-error": Shot("mixture?mixture=bridges", "text=bridges"),
        "run-error": Shot("run?loader=missing.json&step=0", "#error"),
        "step-error": Shot(f"run?{urlencode({'loader': run, 'step': 'x'})}", "#error"),
        "dataset-error": Shot("dataset/bridges/train", "#error"),
        "error": Shot("episode/bridge/train/99", "#error"),
        "not-found": Shot("nothing", "#error"),
    }


@contextlib.contextmanager
def crafted_site(source: Path) -> Iterator[tuple[str, dict[str, Shot]]]:
    """Serve a copy of a root with a NaN and a run next to it; yield the address and the pages."""
    # The pictures show this path, so it is the same each time.
    scratch = Path(tempfile.gettempdir()) / "robots"
    scratch.mkdir()
    try:
        crafted = CraftedRoot(source, scratch / "data")
        for dataset_folder in source.iterdir():
            if dataset_folder.is_dir() and dataset_folder.name != "bridge":
                shutil.copytree(dataset_folder, crafted.root / dataset_folder.name, copy_function=_link)
        steps = crafted.table("steps")
        action = np.stack(steps["action"].to_numpy()).astype(np.float32)
        first_row = steps["episode"].to_pylist().index(_BAD_EPISODE)
        action[first_row:][_BAD_STEPS, _GRIPPER] = np.nan
        values = pa.FixedSizeListArray.from_arrays(pa.array(action.ravel()), action.shape[1])
        crafted.write("steps", with_column(steps, "action", values))
        loader = make_loader(crafted.root, ["bridge", "rt1", "fmb", "taco_play"], batch_size=16, seed=1)
        (scratch / "run").mkdir()
        run = scratch / "run" / "loader.json"
        loader.save(run)
        step = next(step for step in range(1000) if np.isnan(loader.batch_at(step)["action"]).any())
        site = start_site(crafted.root, scratch / "marks.json")
        try:
            yield site.address, find_shots(crafted.root, run, step)
        finally:
            end_site(site)
    finally:
        shutil.rmtree(scratch)


def _link(source: str, target: str) -> None:
    Path(target).symlink_to(Path(source).resolve())


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument(
        "--all", type=Path, metavar="DIR", help="write every page here, wide and narrow, light and dark"
    )
    parser.add_argument("--only", help="with --all: names of pages, with commas")
    options = parser.parse_args()
    with crafted_site(options.root) as (address, shots), sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])

        def take(path: Path, shot: Shot, **look: Any) -> None:
            page = chromium.new_page(**look)
            page.goto(f"{address}{shot.address}")
            page.wait_for_selector(shot.shown)
            page.wait_for_timeout(700)
            page.screenshot(path=path, full_page=options.all is not None)
            page.close()

        if options.all is None:
            for name, shot in shots.items():
                if shot.height:
                    take(DOCS / f"browse-{name}.png", shot, viewport={"width": 1280, "height": shot.height})
            return
        options.all.mkdir(parents=True, exist_ok=True)
        names = options.only.split(",") if options.only else list(shots)
        for name, width, scheme in itertools.product(names, WIDTHS, ("light", "dark")):
            path = options.all / f"{name}-{width}-{scheme}.png"
            take(path, shots[name], viewport={"width": width, "height": 900}, color_scheme=scheme)


if __name__ == "__main__":
    main()
