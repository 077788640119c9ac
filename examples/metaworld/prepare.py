"""The data of `proof.py`: demonstrations, a root of each codec, LeRobot datasets and a root of these."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np
from recordings import describe  # type: ignore[import-not-found]

from stream import Frames, make_loader

FOLDER = Path(__file__).parent
CONVERT = (sys.executable, "-m", "convert.run", "--layout", "frames", "--image-size", "native")


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


def collect(args: argparse.Namespace, pool: Executor) -> None:
    """Collect the demonstrations of each task, unless they exist; refuse those of other arguments."""
    settings, stored = {"demonstrations": args.demonstrations, "seed": args.seed}, args.work / "demonstrations.json"
    if stored.is_file() and json.loads(stored.read_text()) != settings:
        raise SystemExit(f"error: {stored} is not {settings}; remove {args.work}, or name another folder with --work")
    (args.work / "recordings").mkdir(parents=True, exist_ok=True)
    stored.write_text(json.dumps(settings))

    def one_task(task: str) -> None:
        if not (args.work / "recordings" / task).is_dir():
            program = [sys.executable, FOLDER / "collect.py", "--tasks", task, "--out", args.work / "unfinished"]
            options = ["--episodes", args.demonstrations, "--seed", args.seed]
            execute([*program, *options], args.work / "logs" / f"collect_{task}.txt")
            (args.work / "unfinished" / task).rename(args.work / "recordings" / task)

    list(pool.map(one_task, args.tasks))


def convert_recordings(args: argparse.Namespace, folder: str, root: str, *options: str) -> None:
    """Convert the recordings below a folder to a root; what is complete stays.

    Args:
        args: Arguments of the command.
        folder: Folder with a folder of recordings for each task.
        root: Name of the root.
        options: Further options of ``convert.run``.
    """
    config = args.work / "datasets.yaml"
    config.write_text(describe(args.tasks))
    for task in args.tasks:
        if (source := args.work / folder / task).is_dir():
            arguments = ["--datasets", task, "--config", config, "--source", source, "--output", args.work / root]
            execute([*CONVERT, *arguments, *options], args.work / "logs" / f"convert_{root}_{task}.txt")


def convert_lerobot(args: argparse.Namespace) -> int:
    """Export each task as a LeRobot dataset, convert these, and return how many batches are equal bit for bit."""
    (args.work / "lerobot_datasets").mkdir(exist_ok=True)
    for task in args.tasks:
        dataset, logs = args.work / "lerobot_datasets" / task, args.work / "logs"
        if not dataset.is_dir():
            command = [sys.executable, "-m", "pairstream", "export", args.work / "jpeg", "--dataset", task]
            execute([*command, "--output", dataset], logs / f"export_{task}.txt")
        arguments = ["--datasets", f"lerobot:{dataset}", "--output", args.work / "from_lerobot"]
        execute([*CONVERT, *arguments], logs / f"convert_lerobot_{task}.txt")
    shape: dict[str, Any] = {"batch_size": 64, "frames": Frames([0]), "action": 8, "seed": args.seed}
    loaders = [make_loader(args.work / name, args.tasks, **shape) for name in ("jpeg", "from_lerobot")]
    steps = range(0, 100, 5)
    for step in steps:
        batch, same = (loader.batch_at(step) for loader in loaders)
        for key in ("frames", "state", "action", "action_mask", "episode", "step", "dataset", "language"):
            np.testing.assert_array_equal(batch[key], same[key], err_msg=f"step {step}: {key} of the LeRobot root")
    return len(steps)
