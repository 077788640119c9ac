"""Shardings over real processes of JAX: each holds the rows that the sharding says, bitwise, or it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import digest
from tests.distributed.expected import BATCH_SIZE, make_loader, make_task
from tests.distributed.ranks import run_ranks

pytest.importorskip("jax", reason="jax is not installed")

STEPS = 2
HALVES, ALL, QUARTERS = [(0, 4), (4, 8)], (0, 8), [(0, 2), (2, 4), (4, 6), (6, 8)]

Case = tuple[str, dict[str, Any], list[tuple[int, int]]]

TWO: list[Case] = [
    ("data", {"mesh": [[0], [1]], "spec": ["data"]}, HALVES),
    ("the same rows along the model axis", {"mesh": [[0, 1]], "spec": ["data"]}, [ALL, ALL]),
    ("model", {"mesh": [[0, 1]], "spec": ["model"]}, HALVES),
    ("replicated", {"mesh": [[0], [1]], "spec": []}, [ALL, ALL]),
    ("processes in another order", {"mesh": [[1], [0]], "spec": ["data"]}, HALVES[::-1]),
    ("devices of each process alone", {"mesh": [[0]], "spec": ["data"], "local": True}, HALVES),
]
TWO_OF_TWO_DEVICES: list[Case] = [
    ("data", {"mesh": [[0], [1], [2], [3]], "spec": ["data"]}, HALVES),
    ("2x2", {"mesh": [[0, 1], [2, 3]], "spec": ["data"]}, HALVES),
    ("2x2, both axes", {"mesh": [[0, 1], [2, 3]], "spec": [["data", "model"]]}, HALVES),
    ("2x2, model inside of processes", {"mesh": [[0, 1], [2, 3]], "spec": ["model"]}, [ALL, ALL]),
    ("2x2, replicated", {"mesh": [[0, 1], [2, 3]], "spec": []}, [ALL, ALL]),
    ("devices of each process alone", {"mesh": [[0], [1]], "spec": ["data"], "local": True}, HALVES),
    ("data, augmented", {"mesh": [[0], [1], [2], [3]], "spec": ["data"], "augment": "openpi"}, HALVES),
    ("replicated, augmented", {"mesh": [[0, 1], [2, 3]], "spec": [], "augment": "octo"}, [ALL, ALL]),
    ("alone, augmented", {"mesh": [[0], [1]], "spec": ["data"], "local": True, "augment": "lerobot"}, HALVES),
]
FOUR: list[Case] = [
    ("data", {"mesh": [[0], [1], [2], [3]], "spec": ["data"]}, QUARTERS),
    ("2x2", {"mesh": [[0, 1], [2, 3]], "spec": ["data"]}, [HALVES[0], HALVES[0], HALVES[1], HALVES[1]]),
    ("2x2, rows by model", {"mesh": [[0, 1], [2, 3]], "spec": ["model"]}, HALVES * 2),
    ("2x2, both axes", {"mesh": [[0, 1], [2, 3]], "spec": [["data", "model"]]}, QUARTERS),
    ("replicated", {"mesh": [[0, 1], [2, 3]], "spec": []}, [ALL] * 4),
]
OTHER_RANKS = {"rank": 1, "world_size": 2}
REFUSED = [
    ({"mesh": [[0], [2], [1], [3]], "spec": ["data"]}, "of 4 of the rows; expected successive parts in every process"),
    ({"mesh": [[0], [1], [2]], "spec": ["data"]}, "of 3 of the rows; expected successive parts in every process"),
    ({"mesh": [[0, 1], [2, 3]], "spec": [None, "model"]}, "to a value of rank 1; take a sharding of only the rows"),
    ({"mesh": [[0, 1], [2, 3]], "spec": [], "ranks": OTHER_RANKS}, "and the loader has rank=1 and world_size=2; give"),
]


def _digest(batch: dict[str, Any], start: int, stop: int, *, frames: bool) -> str:
    """The digest of some rows of a batch, with the types that JAX makes of it."""
    left_out = ("language",) if frames else ("language", "frames")
    rows = {key: value[start:stop] for key, value in batch.items() if key not in left_out}
    return digest({k: v.astype(np.int32) if v.dtype == np.int64 and k != "sample" else v for k, v in rows.items()})


@pytest.mark.long
@pytest.mark.parametrize(
    ("world_size", "devices", "cases"),
    [(2, 1, TWO), (2, 2, TWO_OF_TWO_DEVICES), pytest.param(4, 1, FOUR, marks=pytest.mark.slow)],
    ids=["2 processes", "2 processes of 2 devices", "4 processes"],
)
def test_each_process_holds_the_rows_that_a_sharding_says(
    oxe_root: Path, world_size: int, devices: int, cases: list[Case]
) -> None:
    task = make_task(oxe_root, devices=devices, cases=[case for _, case, _ in cases]) | {"steps": STEPS}
    messages = run_ranks("jax_shardings", world_size, **task)
    batches = [make_loader(oxe_root).batch_at(step) for step in range(STEPS)]
    for number, (name, case, rows) in enumerate(cases):
        for process, (first, end) in enumerate(rows):
            held_rows = messages[process][number]
            assert "refused" not in held_rows, (name, held_rows)
            moved = first if case.get("local") else 0  # an array of a process alone begins with its own rows
            assert held_rows["rows"] == (end - first if case.get("local") else BATCH_SIZE), name
            assert held_rows["difference"] <= 2, name
            is_augmented = "augment" in case
            for batch, parts, language in zip(batches, held_rows["parts"], held_rows["language"], strict=True):
                held = {row for start, stop, _ in parts for row in range(start + moved, stop + moved)}
                assert held == set(range(first, end)), (name, process)
                assert len(parts) == (devices if not case.get("local") else len(case["mesh"])), name
                for start, stop, part in parts:
                    expected = _digest(batch, start + moved, stop + moved, frames=not is_augmented)
                    assert part == expected, (name, process)
                assert language == batch["language"][first:end], (name, process)


@pytest.mark.long
def test_a_sharding_that_the_processes_rows_cannot_serve_is_refused_in_all_of_them(oxe_root: Path) -> None:
    messages = run_ranks("jax_shardings", 2, **make_task(oxe_root, devices=2, cases=[case for case, _ in REFUSED]))
    for process in messages:
        for message, (case, text) in zip(process, REFUSED, strict=True):
            assert text in message["refused"], (case, message)
