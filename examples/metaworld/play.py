"""Play a trained policy in the simulator: the share of episodes that succeed, by task.

    python examples/metaworld/play.py --run runs/two --tasks button_press,door_open --episodes 20

The policy sees a picture and predicts eight commands, of which four are sent. `normalize.json` of the run turns its
numbers into commands, without the data. `--record` writes successful episodes as files of `collect.py`, to be converted
and shown by `pairstream browse`. `--statistics` takes the numbers of another dataset, a mistake.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from policy import Policy  # type: ignore[import-not-found]
from recordings import write  # type: ignore[import-not-found]
from simulator import MAX_STEPS, TASKS, Simulator, in_processes  # type: ignore[import-not-found]

from stream import load_normalize

SENT = 4
"""Commands of a chunk that are sent before the policy sees the next picture."""
SEED = 1_000_000
"""Seed of the first scene: no seed of `collect.py`."""


class LeRobotNumbers:
    """Normalisation with the statistics of `lerobot.json`, in the manner of LeRobot."""

    def __init__(self, path: Path) -> None:
        self.statistics: dict[str, Any] = json.loads(path.read_text())

    def normalize(self, values: np.ndarray, key: str, *, dataset: str) -> np.ndarray:
        """Return a state in deviations from the mean."""
        numbers = self.statistics[dataset][f"observation.{key}"]
        return ((values - numbers["mean"]) / (np.array(numbers["std"]) + 1e-8)).astype(np.float32)

    def denormalize(self, values: np.ndarray, *, dataset: str, state: np.ndarray) -> np.ndarray:
        """Return actions in the units of the data; the state is that of relative actions, which these are not."""
        numbers = self.statistics[dataset]["action"]
        return (values * (np.array(numbers["std"]) + 1e-8) + numbers["mean"]).astype(np.float32)


class Player:
    """A policy with the numbers of its run.

    Args:
        run: Folder of `train.py` or `train_lerobot.py`.
        statistics: Dataset by task whose statistics are taken; by default that of the task.
    """

    def __init__(self, run: Path, *, statistics: dict[str, str] | None = None) -> None:
        self.policy = Policy()
        self.policy.load_state_dict(torch.load(run / "policy.pt", weights_only=True))
        self.policy.eval()
        stored = run / "normalize.json"
        self.normalize: Any = load_normalize(stored) if stored.is_file() else LeRobotNumbers(run / "lerobot.json")
        self.statistics = statistics or {}

    @torch.inference_mode()
    def commands(self, picture: np.ndarray, state: np.ndarray, task: str) -> np.ndarray:
        """Return the chunk of commands for an observation, float32 [CHUNK, 4]."""
        dataset = self.statistics.get(task, task)
        states = torch.from_numpy(self.normalize.normalize(state, "state", dataset=dataset))
        chunk = self.policy(torch.from_numpy(picture)[None], states[None], [TASKS[task]])[0].numpy()
        commands: np.ndarray = self.normalize.denormalize(chunk, dataset=dataset, state=state)
        return commands


Row = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Picture, state and command of a step."""


def play(player: Player, simulator: Simulator, *, every_picture: bool = False) -> tuple[int, list[Row]]:
    """Play one episode, and return the step of success, 0 without it, and the rows of the episode.

    Args:
        player: The policy.
        simulator: The task, in a new scene.
        every_picture: Whether the rows have a picture of every step, instead of the last one that the policy saw.
    """
    rows: list[Row] = []
    for start in range(0, MAX_STEPS, SENT):
        picture, state = simulator.picture().copy(), simulator.state
        for number, command in enumerate(player.commands(picture, state, simulator.task)[:SENT]):
            if every_picture and number:
                picture = simulator.picture().copy()
            rows.append((picture, simulator.state, command))
            if simulator.step(command):
                return start + number + 1, rows
    return 0, rows


def play_task(task: str, *, args: argparse.Namespace) -> list[int]:
    """Play all scenes of a task, record successes, and return the step of success of each, 0 without it."""
    torch.set_num_threads(1)
    player = Player(args.run, statistics=json.loads(args.statistics))
    simulator, steps, successes = Simulator(task, seed=SEED), [], []
    for _ in range(args.episodes):
        simulator.reset()
        step, rows = play(player, simulator, every_picture=args.record is not None)
        steps.append(step)
        successes += [rows] if step else []
    if args.record and successes:
        write(args.record / task / "000.npz", successes[:5], instruction=TASKS[task])
    return steps


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="folder of train.py or train_lerobot.py")
    parser.add_argument("--tasks", required=True, help="tasks with commas between")
    parser.add_argument("--episodes", type=int, default=20, help="scenes of each task (default: 20)")
    parser.add_argument("--record", type=Path, help="folder for the first successes of each task")
    parser.add_argument("--statistics", default="{}", help='JSON: {"task": "dataset whose statistics it takes"}')
    args = parser.parse_args()
    tasks = args.tasks.split(",")
    for task, steps in zip(tasks, in_processes(partial(play_task, args=args), tasks), strict=True):
        print(json.dumps({"task": task, "steps": steps}), flush=True)
