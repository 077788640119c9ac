"""A sample of the 29 datasets of oxe29, generated and converted by the commands that users run."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from convert.registry import load_registry
from tests.command import run
from tests.converted_dataset import ConvertedDataset, open_converted

if TYPE_CHECKING:
    from tests.tfds_reference import Reference

EPISODES = 3
# Of each episode: the offset is 10 in two datasets, at most 5 in all others.
SHORT, LONG = 8, 13

SELECTED = {selected.spec.name: selected for selected in load_registry().resolve("oxe29")}
NAMES = list(SELECTED)
SWAPPED_WRISTS = {
    name: camera.path
    for name, (_, spec) in SELECTED.items()
    for camera in spec.cameras.values()
    if camera.channels == "bgr" and camera.role == "wrist"
}
"""The camera on the wrist, where red and blue are swapped, by dataset."""


def make_and_convert(folder: Path) -> None:
    """Fill a folder with ``source`` and three conversions of it.

    ``native``: everything, at its native size. ``default``: the first episode of each at 256x256. ``wrist``: the first
    episode of each of ``SWAPPED_WRISTS`` from that camera, at its native size.
    """
    source = folder / "source"
    longer = [name for name, selected in SELECTED.items() if selected.offset == 10]
    for steps, names in ((SHORT, [name for name in NAMES if name not in longer]), (LONG, longer)):
        size = ("--episodes", str(EPISODES), "--steps", str(steps))
        _command("convert.sample", "--datasets", ",".join(names), "--output", source, *size, "--jobs", "2")

    def convert(output: str, *arguments: str) -> None:
        _command("convert.run", "--source", source, "--output", folder / output, *arguments)

    convert("native", "--datasets", "oxe29", "--image-size", "native", "--num-workers", "2")
    one = ("--episodes", "train[:1]", "--num-workers", "1")
    wrists = ("--datasets", ",".join(SWAPPED_WRISTS), "--camera", "wrist", "--image-size", "native")
    with ThreadPoolExecutor(2) as pool:
        for done in (
            pool.submit(convert, "default", "--datasets", "oxe29", *one),
            pool.submit(convert, "wrist", *wrists, *one),
        ):
            done.result()


def _command(module: str, *arguments: str | Path) -> None:
    done = run(*map(str, arguments), module=module)
    assert done.code == 0, f"{module} {arguments}: {done.err}"


@functools.lru_cache(maxsize=1)
def read_reference(root: Path, name: str) -> Reference:
    """What TFDS decodes of a dataset of the sample in ``root``; the last one is kept."""
    # It brings TensorFlow, which other tests do without.
    from tests.tfds_reference import Reference

    spec = SELECTED[name].spec
    return Reference(root / "source" / spec.tfds_name / spec.version)


@functools.lru_cache(maxsize=3)
def read_converted(root: Path, output: str, name: str) -> ConvertedDataset:
    """A dataset of one of the conversions in ``root``."""
    return open_converted(root / output, name, SELECTED[name].spec.version)
