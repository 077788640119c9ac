"""Labels that are attached, replaced and removed by processes that are killed."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

from convert.verify.command import verify_root
from stream.label.attach import list_labels
from stream.storage.remote import LocalFolder
from tests.faults.chaos.sandbox import Broken, Fault, Place

_DATASET = "kuka"
_WORK_S = 0.05
"""Seconds after its first file in which a command is at work."""
_ACTIONS = ("attach", "replace", "remove")


def labels_killed(place: Place, fault: Fault) -> None:
    """SIGKILL a command that attaches, replaces or removes labels: what was there or what is new, and nothing else."""
    action = _ACTIONS[(fault.tried - 1) % len(_ACTIONS)]
    fault.what = action
    shutil.copytree(place.sandbox.root, place.out)
    version = next(place.out.glob(f"{_DATASET}/*"))
    for name in ("old", "new"):
        rows = "".join(f"0,{step},{name}\n" for step in range(3))
        (place.folder / f"{name}.csv").write_text(f"episode,step,label\n{rows}")
    arguments = {
        "attach": [str(place.folder / "new.csv")],
        "replace": [str(place.folder / "new.csv"), "--overwrite"],
        "remove": ["--remove", "label"],
    }
    command = [str(place.out), _DATASET, "--split", "train"]
    if action != "attach":
        _run(place, [*command, str(place.folder / "old.csv")])
    before = _state(place, version)
    labels = version / "train" / "labels"
    first = LocalFolder(labels).sizes()
    with place.starting("pairstream label", *command, *arguments[action]) as started:
        if place.chance.random() < 0.2:
            time.sleep(place.chance.uniform(0, 1))
        else:
            place.wait_until(lambda: LocalFolder(labels).sizes() != first, started, what="the command is at work")
            time.sleep(place.chance.uniform(0, _WORK_S))
        place.kill(started)
    killed = _state(place, version)
    # Any further command clears up, and the same one gives the same.
    _run(place, [*command, *arguments["replace"]])
    if action == "remove":
        _run(place, [*command, *arguments["remove"]])
    after = _state(place, version)
    if killed not in (before, after):
        raise Broken(f"after a kill: {json.dumps(killed)}, neither {json.dumps(before)} nor {json.dumps(after)}")
    if left := [path.name for path in version.rglob(".*")]:
        raise Broken(f"left behind: {', '.join(left)}")
    place.check_clean()


def _run(place: Place, arguments: list[str]) -> None:
    with place.starting("pairstream label", *arguments) as command:
        place.check_done(place.end(command))


def _state(place: Place, version: Path) -> dict[str, Any]:
    """Return what the manifest says of labels; raise Broken if the files are not what it says."""
    report = verify_root(version, jobs=1)
    if not report.ok:
        raise Broken(f"verify: {report.problems[0].to_text()}")
    content = json.loads((version / "dataset.json").read_text())
    hashes = {name: each["sha256"] for name, each in content["splits"]["train"].get("labels", {}).items()}
    return {"labels": hashes, "listed": list_labels(place.out, _DATASET)}
