"""Four cameras play in step at 30 frames/s in a real browser; ``-s`` prints the rate that was measured."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
from playwright.sync_api import expect

from convert.plan import ConvertConfig
from convert.shard.images import FramePolicy
from tests.fixtures.datasets.rlds_dataset import (
    convert_dataset,
    demo_episode,
    demo_features,
    jpeg,
    write_dataset,
)
from tests.fixtures.moving_pictures import moving_pictures
from tests.installed import needs
from tests.pairstream.browse.running_site import Site, end_site, start_site

pytestmark = [pytest.mark.long, needs("playwright")]
CAMERAS, STEPS, RATE, SIDE = 4, 150, 30, 256
WATCH = """([speed, last]) => new Promise(resolve => {
  const canvases = [...document.querySelectorAll('canvas[data-camera]')], steps = [];
  let began = 0, apart = 0;
  document.querySelector('select').value = String(speed);
  document.querySelector('select').dispatchEvent(new Event('change'));
  document.querySelector('.ps-bar button').click();
  const watch = (now) => {
    const at = canvases.map(canvas => Number(canvas.dataset.step));
    if (new Set(at).size > 1 || canvases.some(canvas => canvas.dataset.state !== 'shown')) apart += 1;
    if (at[0] !== steps[steps.length - 1]) steps.push(at[0]);
    began = began || now;
    if (at[0] === last) resolve({steps, apart, seconds: (now - began) / 1000}); else requestAnimationFrame(watch);
  };
  requestAnimationFrame(watch);
})"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One episode of four cameras of 256x256 at 30 Hz."""
    folder = tmp_path_factory.mktemp("playing")
    cameras = [f"image_{number}" for number in range(CAMERAS)]
    episode = demo_episode(STEPS)
    pictures = [jpeg(picture, 90) for picture in moving_pictures(STEPS, size=(SIDE, SIDE))]
    for step, picture in zip(episode["steps"], pictures, strict=True):
        step["observation"] = {"state": step["observation"]["state"]} | dict.fromkeys(cameras, picture)
    images = {name: tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg") for name in cameras}
    state = tfds.features.Tensor(shape=(3,), dtype=np.float32)
    features = demo_features(observation={**images, "state": state})
    dataset = write_dataset(folder / "source", splits={"train": [[episode]]}, features=features)
    roles = ("primary", "secondary", "wrist", "other")
    camera_fields = {
        name: {"path": f"observation/{name}", "role": role, "storage": "jpeg", "shape": [SIDE, SIDE, 3]}
        for name, role in zip(cameras, roles, strict=True)
    }
    options = ConvertConfig(layout="frames", cameras=("all",), policy=FramePolicy(size=None))
    conversion = dataset.conversion(folder / "out", options, control_frequency=RATE, cameras=camera_fields)
    convert_dataset(conversion)
    started_site = start_site(folder / "out", folder / "marks.json")
    yield started_site
    end_site(started_site)


def play(page: Any, site: Site, speed: int) -> tuple[list[int], float]:
    """Play the episode once from its first step; return the steps that were shown, and the steps a second."""
    page.goto(f"{site.address}episode/demo/train/0")
    expect(page.locator("canvas[data-camera][data-state=shown]")).to_have_count(CAMERAS)
    watched = page.evaluate(WATCH, [speed, STEPS - 1])
    rate = (len(watched["steps"]) - 1) / watched["seconds"]
    print(f"{CAMERAS} cameras at {RATE * speed} steps/s: {rate:.1f} shown a second, load {os.getloadavg()[0]:.1f}")
    assert watched["apart"] == 0
    return watched["steps"], rate


def test_four_cameras_play_in_step_and_in_order(page: Any, site: Site) -> None:
    steps, rate = play(page, site, 1)
    assert steps == sorted(steps) and steps[-1] == STEPS - 1
    assert rate <= RATE * 1.1


def test_a_faster_speed_skips_steps_where_the_screen_is_too_slow_but_no_camera(page: Any, site: Site) -> None:
    steps, _ = play(page, site, 4)
    assert steps == sorted(steps) and steps[-1] == STEPS - 1
