"""Seconds of the pages of ``pairstream browse`` in Chromium, measured by ``bench.scale``.

A page counts as shown when its content is, not when the server answered.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests

from bench.measure.child import BenchFailed
from bench.measure.machine import own_set, proportional_set

_DATASET = "synthetic_14"


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Measure the pages of a root of `bench.synthetic`; those after the first one are opened by a click.

    ``start_s`` counts until the command names its address. The table is searched for a text, filtered by ``step`` and
    sorted by ``steps``. ``histograms_s`` is of the action next to those of 28 other datasets. ``browse_own_bytes`` is
    without mapped files.
    """
    with contextlib.ExitStack() as stack:
        marks = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "marks.json"
        began = time.perf_counter()
        program = (sys.executable, "-m", "pairstream", "browse")
        command = [*program, request["root"], "--port", "0", "--no-open", "--marks", marks]
        process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(process.send_signal, signal.SIGINT)
        line = process.stdout.readline() if process.stdout else ""
        if not line:
            raise BenchFailed("pairstream browse ended without an address")
        figures = {"start_s": time.perf_counter() - began}
        address = line.partition(" is at ")[2].split(" ")[0]
        figures |= _look(address)
        figures["frames_per_s"] = _play(address, request["frames"])
        return {**figures, "browse_own_bytes": own_set(process.pid), "browse_pss_bytes": proportional_set(process.pid)}


def _look(address: str) -> dict[str, float]:
    """Return the seconds until each page is shown."""
    from playwright.sync_api import sync_playwright

    seconds: dict[str, float] = {}
    with sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 1400, "height": 900})
        # What a browser keeps of earlier visits, scripts for example, is not part of a page.
        page.goto(f"{address}marks")

        def timed(figure_name: str, work: Callable[[], Any], shown: str) -> None:
            began = time.perf_counter()
            work()
            page.wait_for_function(shown, polling="raf")
            seconds[figure_name] = time.perf_counter() - began

        def opened(figure_name: str, work: Callable[[], Any], shown: str) -> None:
            # From the click on, by the clock of the page itself, which begins then.
            work()
            seconds[figure_name] = (
                page.wait_for_function(f"{shown} && performance.now()", polling="raf").json_value() / 1000
            )

        drawn = "[...document.querySelectorAll('img')].some(image => image.naturalWidth > 0)"
        rows = "document.querySelectorAll('tbody tr').length"
        opened("first_page_s", lambda: page.goto(address), f"{rows} > 28 && {drawn}")
        link = page.locator("#datasets a", has_text=_DATASET).first
        opened("dataset_s", link.click, f"document.querySelector('.q-table') && {rows} > 5 && {drawn}")
        counts = "document.body.innerText.match(/([0-9,]+) of ([0-9,]+) episodes(.*)/)"
        search = page.get_by_label("Instruction, id or number")
        timed("search_s", lambda: search.fill("drawer"), f"{counts}?.[1] != {counts}?.[2]")
        search.fill("")
        page.wait_for_function(f"{counts}?.[1] == {counts}?.[2]")
        timed("filter_s", lambda: _filter(page), f"{counts}?.[3].includes('samples')")
        heading = page.get_by_role("columnheader", name="steps")
        timed("sort_s", heading.click, "location.search.includes('sort%22%3A%22num_steps')")
        histograms = page.get_by_role("tab", name="Histograms")
        timed("histograms_s", histograms.click, "document.querySelectorAll('svg text').length > 28")
        page.get_by_role("tab", name="Episodes").click()
        page.wait_for_function(f"{rows} > 5")
        episode = page.locator("tbody tr a.plain").nth(3)
        opened("episode_s", episode.click, "document.querySelector('canvas[data-state=shown]')")
        members = "document.querySelectorAll('#members tr').length > 28"
        opened("mixture_s", lambda: page.goto(f"{address}mixture"), members)
        chromium.close()
    return seconds


def _filter(page: Any) -> None:
    page.get_by_label("Filter").fill("step")
    page.get_by_role("option", name="step", exact=True).click()
    page.get_by_label("Value").fill("30")
    page.get_by_role("button", name="Add").click()


def _play(address: str, count: int) -> float:
    """Return the frames a second of episodes played from the first step on."""
    with requests.Session() as session:
        began = time.perf_counter()
        for number in range(count):
            frame_path = f"{number // 60}/0/{number % 60}.jpg"
            session.get(f"{address}frame/{_DATASET}/train/{frame_path}").raise_for_status()
        return count / (time.perf_counter() - began)
