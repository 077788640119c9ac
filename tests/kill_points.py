"""Kill a process that mends a converted dataset before each of its changes of a folder, one after the other.

    python -m tests.kill_points SOURCE BROKEN COMPLETE FOLDER

SOURCE is the root of a source dataset ``demo``, BROKEN an output root to start from, COMPLETE an output root to end as.
For each point, a copy of BROKEN in FOLDER is worked on by a process that ends there, is looked at as a reader would,
and is worked on again by another process to its end. Prints the number of points; an error says what is wrong.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from convert.durable import describe_file
from convert.finalise import finalise
from convert.images import FramePolicy
from convert.journal import Journal
from convert.merge import merge_split
from convert.plan import Conversion, Options
from convert.shard import convert_shard
from convert.survey import repaired_sources, survey
from stream.format import FormatError, shard_file, table_file
from stream.manifest import read_manifest
from tests.command import tree
from tests.rlds_dataset import RldsDataset

FOLDER = "demo/1.0.0"
KILLED = 9


def work(conversion: Conversion) -> None:
    """Do what the command does, without a runner."""
    found = survey(conversion)
    again = frozenset(repaired_sources(conversion, found.before) if found.before else ())
    found = survey(conversion, again=again)
    journal = Journal(conversion.plan.output)
    if not found.complete:
        journal.begin({**conversion.parameters, "source": conversion.source.fingerprint})
    journal.remove_stale()
    for job in found.todo:
        convert_shard(job, conversion.plan)
    for split in survey(conversion, again=again).merges:
        merge_split(split, conversion.plan)
    assert finalise(conversion, again=again) is not None


def in_process(conversion: Conversion, *, changes: int) -> int:
    """Work in a process that is killed after so many changes of folders; returns its exit code."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = changes

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **more: Any) -> Any:
            nonlocal left
            if left == 0:
                os._exit(KILLED)
            left -= 1
            return change(*arguments, **more)

        return counting

    for name in ("replace", "unlink", "mkdir", "rmdir"):
        setattr(Path, name, counted(getattr(Path, name)))
    try:
        work(conversion)
    except BaseException as error:
        print(f"after {changes} changes: {error!r}", file=sys.stderr)
        os._exit(1)
    os._exit(0)


def check_as_reader(output: Path, *, lost: set[Path]) -> None:
    """A reader gets one clear error, or a manifest whose files are as it says, but for those lost from the start."""
    try:
        manifest = read_manifest(output / FOLDER)
    except FileNotFoundError as error:
        assert "this conversion is not complete; run convert.run again" in str(error)
        return
    except FormatError as error:
        raise AssertionError(error) from error
    for name, split in manifest.splits.items():
        files = {shard_file(shard.name): shard.file for shard in split.shards}
        for file, entry in {**files, **{table_file(kind): entry for kind, entry in split.index.items()}}.items():
            path = output / FOLDER / name / file
            if path.exists():
                found = describe_file(path)
                assert (found.bytes, found.sha256) == (entry.bytes, entry.sha256), path
            else:
                assert path.relative_to(output) in lost, path


def main() -> None:
    """Kill at every point until there is none left."""
    source, broken, complete, folder = map(Path, sys.argv[1:])
    wanted = tree(complete)
    lost = {Path(name) for name in wanted.keys() - tree(broken).keys()}
    for changes in range(1000):
        output = folder / str(changes)
        shutil.copytree(broken, output)
        conversion = RldsDataset(source, "demo").conversion(output, Options(policy=FramePolicy(size=None)))
        code = in_process(conversion, changes=changes)
        assert code in (0, KILLED), code
        check_as_reader(output, lost=lost)
        assert in_process(conversion, changes=-1) == 0
        found = tree(output)
        assert found == wanted, sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
        shutil.rmtree(output)
        if code == 0:
            print(changes)
            return


if __name__ == "__main__":
    main()
