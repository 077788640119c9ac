"""Tasks of Meta-World in MuJoCo: pictures without a screen, scripted experts, and commands in metres.

A process has one simulator: a second renderer of OSMesa shows the pictures of the first. Install the extra `proof` and
Debian's `libosmesa6`.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

# MuJoCo and PyOpenGL read them when they are imported.
os.environ.setdefault("MUJOCO_GL", "osmesa")
os.environ.setdefault("PYOPENGL_PLATFORM", "osmesa")

TASKS = {
    "button_press": "Press the red button.",
    "door_open": "Open the door.",
    "drawer_open": "Open the drawer.",
    "faucet_open": "Open the faucet.",
    "faucet_close": "Close the faucet.",
}
"""Tasks and their instructions. The two of the faucet begin with the same scene: only the instruction differs."""
SIZE = 64
"""Height and width of a picture."""
MAX_STEPS = 160
"""Steps after which an episode has failed. The experts take 50 to 90."""
LEAD = 0.08
"""Metres from the hand to the command of an expert at full speed: they become force on what the hand touches."""


class Simulator:
    """A task of Meta-World with a camera at the side of the table.

    A command is a position that the hand is drawn to, in metres, and the effort of the gripper, from -1 (open) to 1
    (closed). The position that draws the hand moves by at most 1 cm a step and axis.

    Args:
        task: A key of ``TASKS``.
        seed: Seed of the positions of objects.
    """

    made = False

    def __init__(self, task: str, *, seed: int) -> None:
        if Simulator.made:
            raise RuntimeError("a second simulator in a process shows the pictures of the first; start another process")
        Simulator.made = True
        import metaworld.policies
        import mujoco
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS

        self.task, words = task, task.split("_")
        self.env: Any = ALL_V3_ENVIRONMENTS["-".join(words) + "-v3"]()
        # Objects anywhere in their range, and the goal in the observation, which some experts need.
        self.env._freeze_rand_vec, self.env.seeded_rand_vec, self.env._set_task_called = False, True, True
        self.env._partially_observable = False
        del self.env.sawyer_observation_space
        self.env.seed(seed)
        self.policy: Any = getattr(metaworld.policies, f"Sawyer{''.join(map(str.title, words))}V3Policy")()
        # Multisampling and shadows take three quarters of the time of a picture.
        self.env.model.vis.quality.offsamples = 0
        self.renderer = mujoco.Renderer(self.env.model, SIZE, SIZE)
        self.renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
        self.camera = mujoco.MjvCamera()
        self.camera.lookat[:] = 0, 0.65, 0.12
        self.camera.distance, self.camera.azimuth, self.camera.elevation = 0.95, 20, -35
        self.reset()

    def reset(self) -> None:
        """Begin an episode with new positions of objects."""
        self.observation, _ = self.env.reset()

    @property
    def state(self) -> np.ndarray:
        """Position of the hand in metres and opening of the gripper from 0 to 1, float32 [4]."""
        return self.observation[:4].astype(np.float32)

    def picture(self) -> np.ndarray:
        """Return the view of the camera, uint8 [SIZE, SIZE, 3]."""
        self.renderer.update_scene(self.env.data, camera=self.camera)
        return self.renderer.render()

    def expert(self) -> np.ndarray:
        """Return the command of the task's scripted expert, float32 [4]."""
        action = np.clip(self.policy.get_action(self.observation), -1, 1)
        return np.append(self.observation[:3] + action[:3] * LEAD, action[3]).astype(np.float32)

    def step(self, command: np.ndarray) -> bool:
        """Move towards a command, and return whether the task is solved."""
        move = (command[:3] - self.env.data.mocap_pos[0]) / self.env.action_scale
        self.observation, *_, info = self.env.step(np.clip(np.append(move, command[3]), -1, 1).astype(np.float32))
        return bool(info["success"])


def in_processes(function: Any, calls: Iterable[Any]) -> Iterator[Any]:
    """Yield the results of a function, each computed in a new process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        yield from pool.map(function, calls)
