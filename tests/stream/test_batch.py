"""Batches are assembled in memory that is used again, several at a time."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

import stream.batch
from stream import digest
from stream.batch import Assembler, Work
from stream.mixed import Options, open_mixture
from stream.rows import Rows


def planned(root: Path, count: int, *, threads: int = 1) -> tuple[Assembler, Rows]:
    data = open_mixture(root, "oxe29", split="train", options=Options(seed=2))
    return Assembler(data.spec, threads=threads), data.plan.rows(np.arange(count))


@pytest.mark.parametrize("threads", [1, 3])
def test_batches_begun_together_are_those_made_one_by_one(oxe_root: Path, threads: int) -> None:
    assembler, rows = planned(oxe_root, 200, threads=threads)
    parts = [rows.cut(start, stop) for start, stop in ((0, 32), (32, 40), (40, 140), (140, 200))]
    begun = [(assembler.empty(len(part)), part) for part in parts]
    started = [assembler.begin(part, out) for out, part in begun]
    # In another order than they were begun.
    done = [assembler.finish(started[number]) for number in (2, 0, 3, 1)]
    assert not any(one.failed for one in done)
    fresh, _ = planned(oxe_root, 0)
    for out, part in begun:
        expected = fresh.empty(len(part))
        fresh.assemble(part, expected)
        assert digest(out) == digest(expected)


def test_memory_for_records_is_used_again_unless_it_is_large(oxe_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assembler, rows = planned(oxe_root, 64)
    kept = []
    for _ in range(5):
        assembler.assemble(rows, assembler.empty(len(rows)))
        kept.append([id(memory) for memory in assembler._memories])
    assert len(set(map(tuple, kept))) == 1
    assert len(kept[0]) == 1
    monkeypatch.setattr(stream.batch, "_KEPT_MEMORY", 1000)
    assembler.assemble(rows, assembler.empty(len(rows)))
    assert not assembler._memories


def test_work_is_of_the_process_and_thread_that_did_it() -> None:
    work = Work()

    def note() -> None:
        work.note("read", 1.0, 2.0)

    note()
    thread = threading.Thread(target=note)
    thread.start()
    thread.join()
    here, there = work.spans
    assert (here.process, here.thread) == (os.getpid(), threading.get_native_id())
    assert (there.process, there.thread) == (os.getpid(), thread.native_id)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        note()
        span = work.spans[-1]
        os.write(writer, bytes([(span.process, span.thread) == (os.getpid(), threading.get_native_id())]))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 1) == b"\1"
    os.close(reader)
    os.close(writer)
