"""Train one policy through each path of the data, play each in the simulator, and write the table of `docs/proof.md`.

    make proof                # or: python examples/metaworld/proof.py --lerobot build/proof/lerobot/bin/python
    make proof ARGS=--all     # further codecs, relative chunks and augmentation too

Finished parts stay in `--work`, so the same command continues after an interrupt. Exit code 1: a path is worse than
LeRobot's, or a mistake is not noticed.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policy import Policy  # type: ignore[import-not-found]
from prepare import (  # type: ignore[import-not-found]
    FOLDER,
    collect,
    convert_lerobot,
    convert_successes,
    convert_tasks,
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


VARIANTS = {
    "lerobot": Variant(text="`LeRobotDataset`, torch's `DataLoader`", group="reference", root="lerobot"),
    "jpeg": Variant(text="pairstream, JPEG", group="path"),
    "raw": Variant(text="pairstream, `--codec raw`", group="path", root="raw", only_all=True),
    "h264": Variant(text="pairstream, `--codec h264`", group="path", root="h264", only_all=True),
    "relative": Variant(text='JPEG, `relative_to="state"`', group="path", train=("--relative",)),
    "augment": Variant(text="JPEG, `augment=Augment(...)`", group="path", train=("--augment",), only_all=True),
    "four_late": Variant(text="actions four steps late", group="mistake", train=("--mistake", "four_late")),
    "colours": Variant(text="red and blue swapped", group="mistake", train=("--mistake", "colours")),
    "instructions": Variant(text="instructions of other rows", group="mistake", train=("--mistake", "instructions")),
    "statistics": Variant(text="statistics of another dataset", group="mistake", plays="jpeg"),
    "one_late": Variant(text="actions one step late", group="small mistake", train=("--mistake", "one_late")),
}


def measure(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Train and play a variant, unless its result is there, and return steps to success by task and CPU seconds."""
    variant, run = VARIANTS[name], args.work / "runs" / name
    settings = {"tasks": args.tasks, "steps": args.steps, "episodes": args.episodes, "seed": args.seed}
    stored = run / "result.json"
    if stored.is_file() and (result := json.loads(stored.read_text()))["settings"] == settings:
        return result
    tasks = ",".join(args.tasks)
    result = {"settings": settings, "train_cpu": 0.0, "successes": {}}
    if not variant.plays:
        program = [sys.executable, FOLDER / "train.py", "--root", args.work / variant.root, *variant.train]
        if variant.group == "reference":
            program = [args.lerobot, FOLDER / "train_lerobot.py", "--root", args.work / "lerobot_datasets"]
        options = ["--tasks", tasks, "--steps", args.steps, "--seed", args.seed, "--out", run]
        result["train_cpu"] = execute([*program, *options], args.work / "logs" / f"train_{name}.txt")
    options = ["--run", args.work / "runs" / (variant.plays or name), "--tasks", tasks, "--episodes", args.episodes]
    if variant.plays:
        shifted = dict(zip(args.tasks, [*args.tasks[1:], args.tasks[0]], strict=True))
        options += ["--statistics", json.dumps(shifted)]
    if name == "jpeg":
        options += ["--record", args.work / "successes"]
    log = args.work / "logs" / f"play_{name}.txt"
    result["play_cpu"] = execute([sys.executable, FOLDER / "play.py", *options], log)
    lines = (json.loads(line) for line in log.read_text().splitlines() if line.startswith("{"))
    result["successes"] = {line["task"]: line["steps"] for line in lines}
    run.mkdir(parents=True, exist_ok=True)
    stored.write_text(json.dumps(result))
    print(f"{name}: {sum(bool(step) for steps in result['successes'].values() for step in steps)} solved", flush=True)
    return result


def main(args: argparse.Namespace) -> int:
    """Run everything, write the report, and return the exit code."""
    names = [name for name, variant in VARIANTS.items() if args.all or not variant.only_all]
    with ThreadPoolExecutor(args.jobs) as pool:
        collect(args, pool)
        for codec in {VARIANTS[name].root for name in names} - {"lerobot"}:
            convert_tasks(args, codec)
        equal_batches = convert_lerobot(args)
        trained = [name for name in names if not VARIANTS[name].plays]
        results = dict(zip(trained, pool.map(lambda name: measure(args, name), trained), strict=True))
    results |= {name: measure(args, name) for name in names if name not in results}
    convert_successes(args)
    weights = sum(weight.numel() for weight in Policy().parameters())
    facts = {"equal_batches": equal_batches, "max_steps": MAX_STEPS, "weights": weights}
    return write_report({name: VARIANTS[name] for name in names}, results, args, facts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("build/proof"), help="folder for all that is made")
    parser.add_argument(
        "--lerobot", type=Path, default=Path("build/proof/lerobot/bin/python"), help="Python with LeRobot"
    )
    parser.add_argument("--tasks", type=lambda text: text.split(","), default=list(TASKS), help="default: all")
    parser.add_argument("--demonstrations", type=int, default=40, help="of each task (default: 40)")
    parser.add_argument("--steps", type=int, default=1000, help="steps of 64 samples (default: 1000)")
    parser.add_argument("--episodes", type=int, default=20, help="played of each task and variant (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="of demonstrations, weights and order (default: 0)")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default: 2)")
    parser.add_argument("--all", action="store_true", help="all variants")
    parser.add_argument(
        "--page", type=Path, default=Path("docs/proof.md"), help="page to write, and a picture next to it"
    )
    raise SystemExit(main(parser.parse_args()))
