"""Eight processes on a DeviceMesh of 4 x 2: those of one model get the same rows, and mistakes are errors in all."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.expected import MIXTURE
from tests.distributed.ranks import run_ranks
from tests.installed import needs

pytestmark = [needs("torch"), pytest.mark.long]

Answers = dict[str, dict[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def answers(oxe_root: Path) -> Answers:
    """Return the results of ``check_ranks`` by case and process."""
    (messages,) = run_ranks("mesh_ranks", 1, root=str(oxe_root), mixture=MIXTURE, dp=4, tp=2)
    by_case: defaultdict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for message in messages:
        by_case[message["case"]][message["process"]] = message
    assert {len(processes) for processes in by_case.values()} == {8}
    return dict(by_case)


@pytest.mark.parametrize("case", ["a step", "before the first step", "without numbers of samples"])
def test_processes_of_a_model_have_the_same_rows_and_models_have_others(answers: Answers, case: str) -> None:
    reports = answers[case]
    assert [reports[process]["ranks"] for process in range(8)] == [[rank, 4] for rank in (0, 0, 1, 1, 2, 2, 3, 3)]
    digests = [reports[process]["digest"] for process in range(8)]
    assert digests[::2] == digests[1::2] and len(set(digests)) == 4


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("the global rank", "process 0 has rank 0 of 8, and its place in the mesh needs rank 0 of 4; give make_loader"),
        ("rows that the ranks do not divide", "batch_size=6 is not divisible by world_size=4"),
        ("another seed", "processes 0, 1, 2, 4 ... 7 and process 3 have other orders of samples; give make_loader the"),
        ("a rank is missing", "8 processes have world_size=4 and rank 0: 0, 1, rank 1: 2, 3, rank 2: 4, 5, 6, 7; exp"),
        ("the next step", "processes 0, 1, 2, 4 ... 7 and process 3 have batches of the steps 0, 1; check the batch"),
        ("rows of rank 0", "process 2 has rank 1 of 4 and a batch of the samples 0, 1, which are not the rows of this"),
        ("another column", "process 2 and process 3 have rank 1 and other batches; give transforms and columns the s"),
        ("one process fails", "process 3: step 576460752303423488: expected 0 to "),
        ("one batch for all", "processes of different ranks have the same batch; train on the batches of the loader"),
    ],
)
def test_a_mistake_is_one_error_in_every_process(answers: Answers, case: str, message: str) -> None:
    refused = {answers[case][process]["refused"] for process in range(8)}
    assert len(refused) == 1 and refused.pop().startswith(message)
