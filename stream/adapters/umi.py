"""UMI (diffusion policy with poses of the gripper): samples of its ``UmiDataset``."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from stream.adapters.chunks import delay_of
from stream.adapters.images import as_float
from stream.adapters.sample import (
    Conversion,
    TrainerSample,
    check_data,
    check_mapping,
    check_preset,
    with_known_arguments,
)
from stream.base.arguments import check_whole_number
from stream.base.errors import ArgumentError
from stream.sample.frames import Frames, check_size
from stream.sample.rotations import from_matrix, to_matrix
from stream.sample.select import Select
from stream.sample.vector import Vector
from stream.statistics.deferred import choose_normalize

if TYPE_CHECKING:
    from stream.batch.spec import Batch
    from stream.loader.open_mixture import OpenMixture
    from stream.statistics.normalize import Normalize

Preset = Literal["umi"]


@with_known_arguments
def sample(
    preset: Preset = "umi",
    *,
    action_horizon: int = 16,
    low_dim_obs_horizon: int = 2,
    img_obs_horizon: int = 2,
    down_sample_steps: int = 3,
    num_robots: int | None = None,
    cameras: Mapping[str, str] | None = None,
    image_size: tuple[int, int] = (224, 224),
    normalize: bool | Normalize = False,
) -> TrainerSample:
    """Return the arguments of ``make_loader`` for UMI's batches; poses are relative to the tool at t.

    With T = low_dim_obs_horizon observations, I = img_obs_horizon images and H = action_horizon actions, each
    ``down_sample_steps`` apart; of the robots 0, 1, ..., each relative to its own pose:

    - ``obs``: ``camera0_rgb`` float32 [b, I, 3, 224, 224], from 0 to 1; ``robot0_eef_pos`` float32 [b, T, 3] and
      ``robot0_eef_rot_axis_angle`` float32 [b, T, 6], two rows of the matrix in spite of its name, so that the last is
      the identity; ``robot0_gripper_width`` float32 [b, T, 1]. Steps before the episode repeat as in UMI. Of several
      robots also ``robot0_eef_pos_wrt1`` and ``robot0_eef_rot_axis_angle_wrt1``, the pose in the frame of robot 1 at t,
      and so on.
    - ``action`` float32 [b, H, 10 robots]: position, rotation in two rows and the gripper of each robot; step 0 is the
      present pose.

    Actions are the measured poses from t on: of any dataset in the space ``eef``, or of UMI's own data. Each chunk is
    complete: the last ``down_sample_steps * (action_horizon - 1)`` steps of an episode are not samples.

    Sources: ``diffusion_policy/dataset/umi_dataset.py``, ``common/sampler.py``, ``common/pose_repr_util.py`` and
    ``config/task/umi.yaml``. Not done: poses relative to the start of the episode, which UMI adds noise to; and
    latencies, as UMI's configuration has the rate 0 and shifts nothing.

    Args:
        preset: ``umi``. History needs a root of ``--layout frames``.
        action_horizon: Actions of a chunk.
        low_dim_obs_horizon, img_obs_horizon: Observations and images up to t.
        down_sample_steps: Steps from one to the next, as in ``obs_down_sample_steps``.
        num_robots: Robots of UMI's own data, which ``umi:`` of the converter reads. None takes the space ``eef``, with
            one robot, whose gripper is 0 to 1 where its range is known.
        cameras: Camera of each image key, by default ``{"camera0_rgb": "primary"}``.
        image_size: Height and width.
        normalize: False for the values of ``UmiDataset``, as UMI's policy normalises. True maps the least and the
            largest position and width of the samples to -1 and 1, as its normaliser does; rotations stay, and so do
            poses in the frame of another robot. Or a ``stream.Normalize``.

    Raises:
        ArgumentError: An argument is wrong. ``make_loader`` raises it if a dataset has no pose of the end effector.
    """
    check_preset(preset, get_args(Preset))
    counts = (
        ("action_horizon", action_horizon),
        ("low_dim_obs_horizon", low_dim_obs_horizon),
        ("img_obs_horizon", img_obs_horizon),
        ("down_sample_steps", down_sample_steps),
    )
    has_own_data = num_robots is not None
    action_horizon, low_dim_obs_horizon, img_obs_horizon, stride = (
        check_whole_number(name, value, least=1) for name, value in counts
    )
    cameras = {"camera0_rgb": "primary"} if cameras is None else cameras
    camera_by_key = check_mapping("cameras", cameras, example="{'camera0_rgb': 'primary'}")
    pose = Vector(space="eef", stride=stride, relative_to="state", poses="body", rotation="rot6d_rows")
    num_robots = 1 if num_robots is None else check_whole_number("num_robots", num_robots, least=1)
    if has_own_data:
        columns = [part for robot in range(num_robots) for part in _parts(robot)]
        pose = replace(pose, space=None, columns=columns)
    return TrainerSample(
        frames=Frames(
            list(range(-stride * (img_obs_horizon - 1), 1, stride)),
            cameras=list(dict.fromkeys(camera_by_key.values())),
            size=check_size("image_size", image_size),
            edges="repeat" if img_obs_horizon > 1 else "drop",
        ),
        action=replace(pose, steps=action_horizon),
        state=replace(pose, steps=low_dim_obs_horizon, start=-stride * (low_dim_obs_horizon - 1), edges="repeat"),
        columns=[name for robot in range(num_robots) for name in _pose_columns(robot)] if num_robots > 1 else (),
        select=Select(min_future_actions=action_horizon),
        transforms=(
            *([AddOtherRobots(num_robots)] if num_robots > 1 else ()),
            *choose_normalize(normalize, {"method": "umi", "per": "mixture", "over": "samples", "tails": "repeat"}),
            ToUmi(camera_by_key, stride),
        ),
    )


def _pose_columns(robot: int) -> tuple[str, str]:
    """Return the columns of the pose of a robot of UMI's own data: its position, and its rotation vector."""
    return f"robot{robot}_eef_pos", f"robot{robot}_eef_rot_axis_angle"


def _parts(robot: int) -> list[dict[str, Any]]:
    """Return the columns of one robot of UMI's own data, as the registry describes parts."""
    shared = {"kind": "absolute", "frame": "world"}
    position, rotation = _pose_columns(robot)
    return [
        {**shared, "path": position, "quantity": "ee_position", "unit": "m"},
        {**shared, "path": rotation, "quantity": "ee_rotation_axis_angle", "unit": "rad"},
        {"kind": "absolute", "path": f"robot{robot}_gripper_width", "quantity": "gripper"},
    ]


@dataclass(frozen=True)
class AddOtherRobots:
    """A transform that adds the pose of each robot in the frame of each other robot at t, before normalising.

    Attributes:
        num_robots: Count of the robots.
    """

    num_robots: int

    def bind(self, data: OpenMixture) -> AddOtherRobots:
        """Return the transform itself, which is the same for all data."""
        return self

    def map(self, batch: Batch) -> Batch:
        """Return the batch with ``robot{i}_eef_pos_wrt{j}`` and ``robot{i}_eef_rot_axis_angle_wrt{j}``, [b, T, ...]."""
        state = batch["state"] if batch["state"].ndim == 3 else batch["state"][:, None]
        positions, turns = [], []
        for robot in range(self.num_robots):
            position, rotation = (batch[column].astype(np.float64) for column in _pose_columns(robot))
            positions.append(position[:, None])
            turns.append(to_matrix(rotation, "rotvec")[:, None])
        added = {}
        for robot, other in itertools.permutations(range(self.num_robots), 2):
            part = state[..., 10 * robot : 10 * robot + 9].astype(np.float64)
            to_other = turns[other].swapaxes(-1, -2)
            position = positions[robot] + (turns[robot] @ part[..., :3, None])[..., 0] - positions[other]
            turn = to_other @ turns[robot] @ to_matrix(part[..., 3:], "rot6d_rows")
            added[f"robot{robot}_eef_pos_wrt{other}"] = (to_other @ position[..., None])[..., 0].astype(np.float32)
            added[f"robot{robot}_eef_rot_axis_angle_wrt{other}"] = from_matrix(turn, "rot6d_rows").astype(np.float32)
        return {**batch, **added}


@dataclass(frozen=True)
class ToUmi(Conversion):
    """Conversion of a batch.

    Attributes:
        views: Camera of each image key.
        stride: Steps from one image to the next.
    """

    views: Mapping[str, str]
    stride: int

    def bind(self, data: OpenMixture) -> ToUmi:
        """Check that the data of a loader have poses; raise ArgumentError if they do not."""
        check_data(data, ("action", "state"), cameras=[*self.views.values()])
        for vector_name in ("action", "state"):
            for dataset_name, vector in zip(data.names, data.spec.vectors(vector_name), strict=True):
                if vector.size % 10 or vector.size != data.spec.vectors(vector_name)[0].size:
                    raise ArgumentError(
                        f"{vector_name} of {dataset_name} is {', '.join(vector.names)}; UMI takes 10 numbers of each "
                        "robot: a position, two rows of a rotation and a gripper"
                    )
        return self

    def map(self, batch: Batch) -> Batch:
        """Return the batch of UMI."""
        observation: Batch = {}
        # UMI repeats the first frame that exists at a multiple of the stride before t, not the first of the episode.
        num_frames = next(iter(batch[f"frames/{camera}"].shape[1] for camera in self.views.values()))
        num_valid = np.minimum(num_frames, batch["step"] // self.stride + 1)
        frame_indices = np.maximum(np.arange(num_frames), (num_frames - num_valid)[:, None])
        for key, camera in self.views.items():
            images = np.take_along_axis(batch[f"frames/{camera}"], frame_indices[:, :, None, None, None], axis=1)
            observation[key] = as_float(images)
        state = batch["state"] if batch["state"].ndim == 3 else batch["state"][:, None]
        for robot in range(state.shape[-1] // 10):
            part = state[..., 10 * robot : 10 * robot + 10]
            observation[f"robot{robot}_eef_pos"] = part[..., :3]
            observation[f"robot{robot}_eef_rot_axis_angle"] = part[..., 3:9]
            observation[f"robot{robot}_gripper_width"] = part[..., 9:]
        observation |= {key: values for key, values in batch.items() if "_wrt" in key}
        return {"obs": observation, "action": batch["action"], **delay_of(batch)}
