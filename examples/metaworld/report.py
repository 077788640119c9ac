"""The page of `proof.py`: a table of successes with intervals, the picture of it, and the verdict."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Mapping
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from scipy.stats import binomtest

GOOD = 0.8
"""Share of scenes that a reference has to solve to say much about other paths."""
PAGE = Path(__file__).with_name("page.txt")


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return Wilson's interval of 95 % of a share.

    >>> [round(end, 3) for end in wilson(20, 20)], [round(end, 3) for end in wilson(10, 20)]
    ([0.839, 1.0], [0.299, 0.701])
    """
    low, high = binomtest(successes, trials).proportion_ci(method="wilson")
    return float(low), float(high)


def judge(variants: Mapping[str, Any], shares: Mapping[str, tuple[int, int]]) -> dict[str, bool | None]:
    """Return whether each variant is as expected, None where nothing is claimed.

    Args:
        variants: Variants with their ``group``, one of which is the reference.
        shares: Successes and trials of each.
    """
    reference = next(name for name, variant in variants.items() if variant.group == "reference")
    least = wilson(*shares[reference])[0]
    as_good = {name: successes / trials >= least for name, (successes, trials) in shares.items()}
    claims = {"path": lambda name: as_good[name], "mistake": lambda name: not as_good[name]}
    return {
        name: claims[variant.group](name) if variant.group in claims else None for name, variant in variants.items()
    }


def write_report(
    variants: Mapping[str, Any], results: Mapping[str, Any], args: argparse.Namespace, facts: dict[str, Any]
) -> int:
    """Write the page and the picture, and return 0 if every variant is as expected, else 1."""
    counts = {
        name: {task: sum(map(bool, steps)) for task, steps in results[name]["successes"].items()} for name in variants
    }
    shares = {name: (sum(by_task.values()), len(by_task) * args.episodes) for name, by_task in counts.items()}
    verdicts = judge(variants, shares)
    failed = [variants[name].text for name, verdict in verdicts.items() if verdict is False]
    verdict = f"**Not as expected: {', '.join(failed)}.**" if failed else "All variants are as expected."
    reference = next(shares[name] for name, variant in variants.items() if variant.group == "reference")
    if reference[0] < GOOD * reference[1]:
        verdict += f" The reference solved only {reference[0]} of {reference[1]} scenes, a weak bar for the paths."
    seconds = sum(results[name]["train_cpu"] + results[name]["play_cpu"] for name in variants)
    minutes = f"All trainings and scenes took {seconds / 60:.0f} minutes of CPU time, half of that on two quiet cores."
    args.page.write_text(
        PAGE.read_text().format(
            command="make proof" + (" ARGS=--all" if args.all else ""),
            date=date.today(),
            tasks=len(args.tasks),
            table=_table(variants, results, counts, shares, verdicts, args),
            verdict=verdict,
            max_steps=facts["max_steps"],
            episodes=args.episodes,
            half_count=args.episodes // 2,
            full=_percent(wilson(args.episodes, args.episodes)),
            half=_percent(wilson(args.episodes // 2, args.episodes)),
            steps=args.steps,
            load=minutes,
            equal_batches=facts["equal_batches"],
            demonstrations=args.demonstrations,
            weights=facts["weights"],
            seed=args.seed,
            versions=_versions(),
        )
    )
    draw(args.page.with_suffix(".png"), variants, shares)
    print(f"{verdict} {minutes} {args.page}")
    return bool(failed)


def _table(
    variants: Mapping[str, Any],
    results: Mapping[str, Any],
    counts: Mapping[str, dict[str, int]],
    shares: Mapping[str, tuple[int, int]],
    verdicts: Mapping[str, bool | None],
    args: argparse.Namespace,
) -> str:
    """Return the table in Markdown, a row for each variant."""
    words = {True: "yes", False: "**no**", None: "-"}
    header = ["", "kind", *(task.replace("_", " ") for task in args.tasks), "all", "expected", "CPU s"]
    lines = [header, ["---", "---", *["--:"] * (len(args.tasks) + 1), "---", "--:"]]
    for name, variant in variants.items():
        successes, trials = shares[name]
        share = f"{successes / trials:.0%} ({_percent(wilson(successes, trials))})"
        seconds = f"{results[name]['train_cpu']:.0f}" if results[name]["train_cpu"] else "-"
        cells = [str(counts[name][task]) for task in args.tasks]
        lines.append([variant.text, variant.group, *cells, share, words[verdicts[name]], seconds])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _percent(interval: tuple[float, float]) -> str:
    return f"{interval[0] * 100:.0f} to {interval[1] * 100:.0f} %"


def _versions() -> str:
    """Return the versions of what the figures depend on."""
    names = ["pairstream", "metaworld", "mujoco", "torch", "numpy"]
    named = []
    for name in names:
        try:
            named.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            named.append(name)
    return f"Python {platform.python_version()}, {', '.join(named)}, LeRobot 0.4.4, {platform.system()}."


def draw(path: Path, variants: Mapping[str, Any], shares: Mapping[str, tuple[int, int]]) -> None:
    """Draw the share of each variant as a bar with its interval."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    colours = {"reference": "#777777", "path": "#2a7ab9", "mistake": "#c8552d", "small mistake": "#e3a587"}
    figure, axes = plt.subplots(figsize=(8, 0.42 * len(variants) + 0.8))
    for number, (name, variant) in enumerate(variants.items()):
        successes, trials = shares[name]
        low, high = wilson(successes, trials)
        axes.barh(number, successes / trials * 100, color=colours[variant.group])
        axes.plot([low * 100, high * 100], [number, number], color="black", linewidth=1.5)
    axes.set_yticks(range(len(variants)), [variant.text.replace("`", "") for variant in variants.values()])
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("scenes that the policy solved, %")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=90, bbox_inches="tight")
    plt.close(figure)
