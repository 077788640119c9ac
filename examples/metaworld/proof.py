"""Train one policy through each path of the data, play each in the simulator, and write the table of `docs/proof.md`.

    make proof                # or: python examples/metaworld/proof.py --lerobot build/proof/lerobot/bin/python
    make proof ARGS=--all     # all tasks, further codecs and mistakes, and augmentation

Finished parts stay in `--work`, so the same command continues after an interrupt. Exit code 1: a path is worse than
LeRobot's, or a mistake is not noticed.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from policy import Policy  # type: ignore[import-not-found]
from prepare import (  # type: ignore[import-not-found]
    FOLDER,
    collect,
    convert_lerobot,
    convert_recordings,
    execute,
)
from report import write_report  # type: ignore[import-not-found]
from simulator import MAX_STEPS, TASKS  # type: ignore[import-not-found]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A path of the data to the policy.

    Attributes:
        text: Description for the table.
        group: `reference`, `path` (as good as the reference), `mistake` (worse) or `small mistake` (no claim).
        root: Folder of the data.
        train: Arguments of `train.py`.
        plays: Name of the variant whose policy is played, with statistics of other tasks; None trains a policy.
        only_all: Whether it takes `--all`.
    """

    text: str
    group: str
    root: str = "jpeg"
    train: tuple[str, ...] = ()
    plays: str | None = None
    only_all: bool = False


FEW = ("button_press", "drawer_open", "faucet_open")
"""Tasks of the short table."""
VARIANTS = {
    "lerobot": Variant(text="`LeRobotDataset`, torch's `DataLoader`", group="reference", root="lerobot"),
    "jpeg": Variant(text="pairstream, JPEG", group="path"),
    "raw": Variant(text="pairstream, `--codec raw`", group="path", root="raw", only_all=True),
    "h264": Variant(text="pairstream, `--codec h264`", group="path", root="h264", only_all=True),
    "relative": Variant(text='JPEG, `relative_to="state"`', group="path", train=("--relative",)),
    "augment": Variant(text="JPEG, `augment=Augment(...)`", group="path", train=("--augment",), only_all=True),
    "four_late": Variant(text="actions four steps late", group="mistake", train=("--mistake", "four_late")),
    "colours": Variant(text="red and blue swapped", group="mistake", train=("--mistake", "colours")),
    "instructions": Variant(
        text="instructions of other rows", group="mistake", train=("--mistake", "instructions"), only_all=True
    ),
    "statistics": Variant(text="statistics of another dataset", group="mistake", plays="jpeg"),
    "one_late": Variant(
        text="actions one step late", group="small mistake", train=("--mistake", "one_late"), only_all=True
    ),
}


def measure(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Train and play a variant, unless its result exists, and return steps to success by task and CPU seconds."""
    settings = {"tasks": args.tasks, "steps": args.steps, "episodes": args.episodes, "seed": args.seed}
    stored = args.work / "runs" / name / "result.json"
    if stored.is_file():
        result: dict[str, Any] = json.loads(stored.read_text())
        if result["settings"] == settings:
            return result
    train_cpu = 0.0 if VARIANTS[name].plays else train(args, name)
    play_cpu, successes = play(args, name)
    result = {"settings": settings, "successes": successes, "train_cpu": train_cpu, "play_cpu": play_cpu}
    stored.parent.mkdir(parents=True, exist_ok=True)
    stored.write_text(json.dumps(result))
    print(f"{name}: {sum(bool(step) for steps in successes.values() for step in steps)} scenes solved", flush=True)
    return result


def train(args: argparse.Namespace, name: str) -> float:
    """Train a variant, and return the CPU seconds."""
    variant = VARIANTS[name]
    program = [sys.executable, FOLDER / "train.py", "--root", args.work / variant.root, *variant.train]
    if variant.group == "reference":
        program = [args.lerobot, FOLDER / "train_lerobot.py", "--root", args.work / "lerobot_datasets"]
    options = ["--tasks", ",".join(args.tasks), "--steps", args.steps, "--seed", args.seed]
    return execute([*program, *options, "--out", args.work / "runs" / name], args.work / "logs" / f"train_{name}.txt")


def play(args: argparse.Namespace, name: str) -> tuple[float, dict[str, list[int]]]:
    """Play a variant, and return the CPU seconds and the steps to success by task, 0 for a failure."""
    run = args.work / "runs" / (VARIANTS[name].plays or name)
    command = [sys.executable, FOLDER / "play.py", "--run", run, "--tasks", ",".join(args.tasks)]
    command += ["--episodes", args.episodes]
    if VARIANTS[name].plays:
        next_tasks = dict(zip(args.tasks, [*args.tasks[1:], args.tasks[0]], strict=True))
        command += ["--statistics", json.dumps(next_tasks)]
    if name == "jpeg":
        command += ["--record", args.work / "successes"]
    log = args.work / "logs" / f"play_{name}.txt"
    cpu_seconds = execute(command, log)
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return cpu_seconds, {line["task"]: line["steps"] for line in lines}


def main(args: argparse.Namespace) -> int:
    """Run everything, write the report, and return the exit code."""
    names = [name for name, variant in VARIANTS.items() if args.all or not variant.only_all]
    trained = [name for name in names if not VARIANTS[name].plays]
    with ThreadPoolExecutor(args.jobs) as pool:
        print(f"collecting {args.demonstrations} demonstrations of {', '.join(args.tasks)}", flush=True)
        collect(args, pool)
        for codec in sorted({VARIANTS[name].root for name in names} - {"lerobot"}):
            print(f"converting to {codec}", flush=True)
            convert_recordings(args, "recordings", codec, "--codec", codec)
        equal_batches = convert_lerobot(args)
        print(f"training and playing {len(names)} variants; logs are in {args.work / 'logs'}", flush=True)
        results = dict(zip(trained, pool.map(partial(measure, args), trained), strict=True))
    results |= {name: measure(args, name) for name in names if name not in results}
    convert_recordings(args, "successes", "success_root", "--overwrite")
    weights = sum(weight.numel() for weight in Policy().parameters())
    facts = {"equal_batches": equal_batches, "max_steps": MAX_STEPS, "weights": weights}
    return write_report({name: VARIANTS[name] for name in names}, results, args, facts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("build/proof"), help="folder for all that is made")
    parser.add_argument(
        "--lerobot", type=Path, default=Path("build/proof/lerobot/bin/python"), help="Python with LeRobot"
    )
    parser.add_argument(
        "--tasks", type=lambda text: text.split(","), help=f"default: {', '.join(FEW)}, or all with --all"
    )
    parser.add_argument("--demonstrations", type=int, default=40, help="of each task (default: 40)")
    parser.add_argument("--steps", type=int, help="steps of 64 samples (default: 800 for each task)")
    parser.add_argument("--episodes", type=int, default=20, help="played of each task and variant (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="of demonstrations, weights and order (default: 0)")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default: 2)")
    parser.add_argument("--all", action="store_true", help="all tasks and variants")
    parser.add_argument(
        "--page", type=Path, default=Path("docs/proof.md"), help="page to write, and a picture next to it"
    )
    args = parser.parse_args()
    args.tasks = args.tasks or (list(TASKS) if args.all else list(FEW))
    if unknown := [task for task in args.tasks if task not in TASKS]:
        parser.error(f"--tasks {','.join(unknown)}: expected some of {', '.join(TASKS)}")
    args.steps = args.steps or 800 * len(args.tasks)
    raise SystemExit(main(args))
