"""The data of `proof.py`: demonstrations, a root of each codec, LeRobot datasets and a root of these."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from recordings import describe  # type: ignore[import-not-found]

from convert.run.command import main as convert
from pairstream.export.command import export
from stream import Frames, make_loader

FOLDER = Path(__file__).parent


def execute(command: Sequence[Any], log: Path) -> float:
    """Run a command with its output in a file, and return its CPU time in seconds, with that of its processes."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        process = subprocess.Popen([str(part) for part in command], stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"error: {' '.join(map(str, command))} ended with {process.returncode}; see {log}")
    return usage.ru_utime + usage.ru_stime


def collect(args: argparse.Namespace, pool: ThreadPoolExecutor) -> None:
    """Collect the demonstrations of each task that is not there."""

    def one_task(task: str) -> None:
        if not (args.work / "recordings" / task).is_dir():
            options = [
                "--tasks",
                task,
                "--episodes",
                args.demonstrations,
                "--seed",
                args.seed,
                "--out",
                args.work / "new",
            ]
            execute([sys.executable, FOLDER / "collect.py", *options], args.work / "logs" / f"collect_{task}.txt")
            (args.work / "recordings").mkdir(exist_ok=True)
            (args.work / "new" / task).rename(args.work / "recordings" / task)

    list(pool.map(one_task, args.tasks))


def convert_tasks(args: argparse.Namespace, codec: str) -> None:
    """Convert the recordings of all tasks to a root of its own."""
    config = args.work / "datasets.yaml"
    config.write_text(describe(args.tasks))
    for task in args.tasks:
        source = ["--datasets", task, "--config", str(config), "--source", str(args.work / "recordings" / task)]
        options = ["--layout", "frames", "--image-size", "native", "--codec", codec]
        if code := convert([*source, *options, "--output", str(args.work / codec)]):
            raise SystemExit(code)


def convert_lerobot(args: argparse.Namespace) -> int:
    """Export each task as a LeRobot dataset, convert these, and return how many batches are equal bit for bit."""
    for task in args.tasks:
        folder = args.work / "lerobot_datasets" / task
        if not folder.is_dir():
            export(args.work / "jpeg", folder, dataset=task)
        options = ["--layout", "frames", "--image-size", "native", "--output", str(args.work / "from_lerobot")]
        if code := convert(["--datasets", f"lerobot:{folder}", *options]):
            raise SystemExit(code)
    shape: dict[str, Any] = {"batch_size": 64, "frames": Frames([0]), "action": 8, "seed": args.seed}
    loaders = [make_loader(args.work / name, args.tasks, **shape) for name in ("jpeg", "from_lerobot")]
    for step in range(0, 100, 5):
        batch, same = (loader.batch_at(step) for loader in loaders)
        for key in ("frames", "state", "action", "action_mask", "episode", "step", "dataset", "language"):
            np.testing.assert_array_equal(batch[key], same[key], err_msg=f"step {step}: {key} of the LeRobot root")
    return 20


def convert_successes(args: argparse.Namespace) -> None:
    """Convert the recorded successes, for ``pairstream browse``."""
    source = ["--config", str(args.work / "datasets.yaml"), "--output", str(args.work / "success_root"), "--overwrite"]
    for folder in sorted((args.work / "successes").iterdir()):
        options = ["--datasets", folder.name, "--source", str(folder), "--layout", "frames", "--image-size", "native"]
        convert([*options, *source])
