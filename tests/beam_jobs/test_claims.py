"""Each job of a local run is claimed by one process, until all are or one has failed."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

from beam_jobs.claims import Claims

JOBS = 2000
TAKE = """
import pickle, sys
claims = pickle.loads(bytes.fromhex(sys.argv[1]))
sys.stdin.readline()
print(*claims)
"""


def test_processes_claim_every_job_once(tmp_path: Path) -> None:
    claims = pickle.dumps(Claims(tmp_path / "claims", jobs=JOBS)).hex()
    arguments = [sys.executable, "-c", TAKE, claims]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(arguments, stdin=pipe, stdout=pipe, text=True) for _ in range(3)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    claimed = [list(map(int, process.communicate()[0].split())) for process in processes]
    assert all(numbers == sorted(numbers) for numbers in claimed)
    assert sorted(number for numbers in claimed for number in numbers) == list(range(JOBS))


def test_a_job_is_claimed_when_it_is_asked_for(tmp_path: Path) -> None:
    claims = Claims(tmp_path / "claims", jobs=4)
    first, second = iter(claims), iter(claims)
    assert [next(first), next(second), next(second), next(first)] == [0, 1, 2, 3]
    assert list(first) == list(second) == []


def test_after_a_failure_no_job_is_left_and_the_error_is_told(tmp_path: Path) -> None:
    claims = Claims(tmp_path / "claims", jobs=9)
    assert next(iter(claims)) == 0
    assert claims.failure() == ""
    claims.stop("the disk is füll")
    assert list(claims) == []
    assert claims.failure() == "the disk is füll"
