"""The programs of ``examples/trainers``: killed, resumed on another number of processes, and the same rows bitwise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import stream
from tests.distributed.ranks import start_ranks
from tests.distributed.trainers.recipe_rank import NOTED, row_digests
from tests.fixtures.command import Result
from tests.installed import needs

BATCH_SIZE = 8
MIXTURE = "oxe29"


@dataclass(frozen=True)
class Recipe:
    """A program, its libraries, and the processes of its runs.

    Attributes:
        libraries: Libraries that it needs.
        launcher: What starts its processes: ``torchrun``'s environment, ``jax``'s arguments, or itself, by an option.
        runs: Of each run, the data ranks of its processes and further arguments.
        accumulate: Batches of a step that the program counts.
    """

    libraries: Sequence[str]
    launcher: str = "torchrun"
    runs: Sequence[tuple[Sequence[int], Sequence[str]]] = (((0, 1), ()), ((0,), ()), ((0, 1), ()))
    accumulate: int = 1


RECIPES = {
    "accelerate_loop": Recipe(["torch", "accelerate"]),
    "transformers_trainer": Recipe(
        ["torch", "accelerate", "transformers"],
        runs=[(ranks, ["--accumulate", "2"]) for ranks in ([0, 1], [0], [0, 1])],
        accumulate=2,
    ),
    "torchdata_loader": Recipe(["torch", "torchdata"]),
    "fsdp2_dcp": Recipe(["torch"]),
    "device_mesh": Recipe(
        ["torch"],
        runs=[([0, 0, 1, 1], ["--tp", "2"]), ([0, 0], ["--tp", "2"]), ([0, 1], ["--tp", "1"])],
    ),
    "lightning_fit": Recipe(
        ["torch", "lightning"],
        launcher="itself",
        runs=[([0, 1], ["--devices", "2"]), ([0], ["--devices", "1"]), ([0, 1], ["--devices", "2"])],
    ),
    "ray_train": Recipe(
        ["torch", "ray", "pandas"],
        launcher="ray",
        runs=[([0, 1], ["--workers", "2"]), ([0], ["--workers", "1"]), ([0, 1], ["--workers", "2"])],
    ),
    "jax_orbax": Recipe(["jax", "orbax"], launcher="jax"),
}
EVERY = 2
"""Batches between checkpoints."""
KILLED = (6, 4)
"""Number of the batch in which the first and the second run die; the third runs to its end."""
STEPS = 10


_NAMES = [pytest.param(name, marks=list(map(needs, recipe.libraries))) for name, recipe in RECIPES.items()]


def _run(name: str, recipe: Recipe, number: int, root: Path, folder: Path) -> list[Result]:
    """Run the processes of a run to their end."""
    ranks, options = recipe.runs[number]
    (folder / f"notes-{number}").mkdir()
    arguments = ["--root", str(root), "--mixture", MIXTURE, "--batch-size", str(BATCH_SIZE)]
    arguments += ["--steps", str(STEPS // recipe.accumulate), "--every", str(EVERY // recipe.accumulate), *options]
    task = {
        "recipe": name,
        "launcher": recipe.launcher,
        "arguments": [*arguments, "--out", str(folder / "out"), *(["--resume"] if number else [])],
        "notes": str(folder / f"notes-{number}"),
        "kill_at": KILLED[number] if number < len(KILLED) else None,
    }
    starts_itself = recipe.launcher in ("itself", "ray")
    with start_ranks("trainers.recipe_rank", 1 if starts_itself else len(ranks), **task) as commands:
        return [command.wait() for command in commands]


def _notes(folder: Path, number: int) -> dict[int, list[dict[str, Any]]]:
    """Return the rows of each step that each process of a run trained."""
    paths = sorted((folder / f"notes-{number}").glob("*.jsonl"))
    return {int(path.stem): [json.loads(line) for line in path.read_text().splitlines()] for path in paths}


def _first_step(rows: list[str], expected: list[list[str]], *, latest: int) -> int:
    """Return the step of the first batch of a run: Ray knows a checkpoint only some time after it was reported."""
    return next(step for step in range(0, latest + 1, EVERY) if expected[step][: len(rows)] == rows)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", _NAMES)
def test_a_killed_run_resumes_on_other_processes_with_the_same_rows(name: str, oxe_root: Path, tmp_path: Path) -> None:
    recipe = RECIPES[name]
    loader = stream.make_loader(oxe_root, MIXTURE, batch_size=BATCH_SIZE, action=4, normalize="mean_std")
    expected = []
    for step in range(STEPS):
        batch = loader.batch_at(step)
        expected.append(row_digests({key: batch[key] for key in NOTED}))
    first, num_rows = 0, 0
    for number, (ranks, _) in enumerate(recipe.runs):
        results = _run(name, recipe, number, oxe_root, tmp_path)
        errors, codes = "\n".join(result.err for result in results), [result.code for result in results]
        notes = _notes(tmp_path, number)
        assert sorted(notes) == list(range(len(ranks))), errors
        if recipe.launcher == "ray":
            first = _first_step(notes[0][0]["rows"], expected, latest=first)
        is_killed = number < len(KILLED)
        stop = first + KILLED[number] if is_killed else STEPS
        rows = BATCH_SIZE // (max(ranks) + 1)
        for process, rank in enumerate(ranks):
            trained = [note["rows"] for note in notes[process]]
            part = slice(rank * rows, (rank + 1) * rows)
            assert trained == [step_rows[part] for step_rows in expected[first:stop]], (
                f"run {number}, process {process}: {errors}"
            )
            num_rows += rows * len(trained)
        if is_killed:
            assert -9 in codes or recipe.launcher == "ray", errors
            # The batch of the kill was not trained to its end.
            done = stop - 1 - first
            first += done // EVERY * EVERY
        else:
            assert codes == [0] * len(codes), errors
    counts = ", ".join(str(len(ranks)) for ranks, _ in recipe.runs)
    print(f"{name}: killed in batches {KILLED[0]} and 8, processes {counts}, {num_rows} rows equal")
