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
from tests.faults.chaos.sandbox import Broken, Fault, Trial

_DATASET = "kuka"
_WORK_S = 0.05
"""Seconds after its first file in which a command is at work."""
_ACTIONS = ("attach", "replace", "remove")


def labels_killed(trial: Trial, fault: Fault) -> None:
    """SIGKILL a command that attaches, replaces or removes labels: what was there or what is new, and nothing else."""
    action = _ACTIONS[(fault.tried - 1) % len(_ACTIONS)]
    fault.what = action
    shutil.copytree(trial.sandbox.root, trial.out)
    version = next(trial.out.glob(f"{_DATASET}/*"))
    for name in ("old", "new"):
        rows = "".join(f"0,{step},{name}\n" for step in range(3))
        (trial.folder / f"{name}.csv").write_text(f"episode,step,label\n{rows}")
    new = str(trial.folder / "new.csv")
    arguments = {"attach": [new], "replace": [new, "--overwrite"], "remove": ["--remove", "label"]}
    command = [str(trial.out), _DATASET, "--split", "train"]
    if action != "attach":
        _run(trial, [*command, str(trial.folder / "old.csv")])
    before = _state(trial, version)
    labels = version / "train" / "labels"
    first = LocalFolder(labels).sizes()
    with trial.starting("pairstream label", *command, *arguments[action]) as started:
        if trial.chance.random() < 0.2:
            time.sleep(trial.chance.uniform(0, 1))
        else:
            trial.wait_until(lambda: LocalFolder(labels).sizes() != first, started, condition="the command is at work")
            time.sleep(trial.chance.uniform(0, _WORK_S))
        trial.kill(started)
    killed = _state(trial, version)
    # Any further command clears up, and the same one gives the same.
    _run(trial, [*command, *arguments["replace"]])
    if action == "remove":
        _run(trial, [*command, *arguments["remove"]])
    after = _state(trial, version)
    if killed not in (before, after):
        raise Broken(f"after a kill: {json.dumps(killed)}, neither {json.dumps(before)} nor {json.dumps(after)}")
    if left := [path.name for path in version.rglob(".*")]:
        raise Broken(f"left behind: {', '.join(left)}")
    trial.check_clean()


def _run(trial: Trial, arguments: list[str]) -> None:
    with trial.starting("pairstream label", *arguments) as command:
        trial.check_done(trial.end(command))


def _state(trial: Trial, version: Path) -> dict[str, Any]:
    """Return what the manifest says of labels; raise Broken if the files are not what it says."""
    report = verify_root(version, jobs=1)
    if not report.ok:
        raise Broken(f"verify: {report.problems[0].to_text()}")
    content = json.loads((version / "dataset.json").read_text())
    hashes = {name: label["sha256"] for name, label in content["splits"]["train"].get("labels", {}).items()}
    return {"labels": hashes, "listed": list_labels(trial.out, _DATASET)}
