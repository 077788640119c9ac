"""``lerobot-train`` on the batches of a loader, with LeRobot's policies, options and checkpoints."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from stream.adapters import lerobot
from stream.adapters.sample import conversion
from stream.base.errors import ArgumentError
from stream.frameworks.prefetch import PrefetchIterator
from stream.frameworks.torch import to_device
from stream.storage.files import write_atomically

if TYPE_CHECKING:
    from stream.loader.loader import Loader

PROGRAM = "lerobot.scripts.lerobot_train"
STATE_FILE = Path("training_state/loader_state.json")
"""State of the loader in a checkpoint of LeRobot."""


def lerobot_train(loader: Loader, *, stats: Mapping[str, Any] | None = None) -> None:
    """Run ``lerobot-train`` with the options of this program's command line, on the batches of a loader.

    Three functions of LeRobot's script are replaced while it runs: those that make its dataset, iterate its
    ``DataLoader`` and save a checkpoint. A checkpoint has the loader's state in ``training_state/loader_state.json``,
    and ``--resume=true`` continues with the batch after the last one that was trained on, on any number of processes.

    Options of LeRobot that would change batches are an error if they differ from the loader's. ``--dataset.repo_id`` is
    only a name, and ``--num_workers`` is not used.

    Args:
        loader: Loader of ``lerobot.sample``; with ``**stream.torch.ranks()`` for ``accelerate launch``.
        stats: Statistics for the policy's processors, by default ``lerobot.dataset_stats(loader)``.

    Raises:
        ArgumentError: The loader is of another trainer, LeRobot's options differ from it, LeRobot's script has other
            functions, or the checkpoint to resume has no state of a loader.
        ImportError: LeRobot is not installed.
    """
    try:
        program = importlib.import_module(PROGRAM)
    except ModuleNotFoundError as error:
        message = f"lerobot_train needs {error.name}, which is not installed; see docs/trainers/lerobot.md"
        raise ModuleNotFoundError(message, name=error.name) from None
    with mock.patch.multiple(program, **_Run(loader, stats).replacements(program)):
        program.main()


class _Run:
    """Functions that replace those of LeRobot's script.

    Attributes:
        loader: Loader whose batches are trained on.
        stats: Statistics for the policy's processors, None for the loader's.
        state: State in the checkpoint to resume, None for a new run.
    """

    def __init__(self, loader: Loader, stats: Mapping[str, Any] | None) -> None:
        self.loader, self.stats = loader, stats
        self.state: Any = None

    def replacements(self, program: Any) -> dict[str, Any]:
        """Return the functions by the names that they have in the script of LeRobot 0.4 or 0.6."""
        functions: dict[str, Any] = {"cycle": self.cycle, "save_checkpoint": self.save_checkpoint}
        if hasattr(program, "make_dataset"):
            functions["make_dataset"] = self.make_dataset
        else:
            functions["make_train_eval_datasets"] = lambda config: (self.make_dataset(config), None)
        if missing := [name for name in functions if not hasattr(program, name)]:
            raise ArgumentError(f"{PROGRAM} has no {', '.join(missing)}; expected the script of LeRobot 0.4 or 0.6")
        return {**functions, "save_checkpoint": partial(self.save_checkpoint, program.save_checkpoint)}

    def make_dataset(self, config: Any) -> StandIn:
        """Return the stand-in for LeRobot's dataset. LeRobot's options are known from here on."""
        check_config(self.loader, config, has_stats=self.stats is not None)
        if config.resume:
            self.state = _read_state(Path(config.checkpoint_path))
            self.loader.step_of(self.state)
        return StandIn(self.loader, lerobot.dataset_stats(self.loader) if self.stats is None else self.stats)

    def cycle(self, _: Any) -> PrefetchIterator:
        """Return batches on this process's device; LeRobot's own DataLoader is never started."""
        from accelerate import PartialState

        batches = to_device(self.loader, PartialState().device)
        if self.state is not None:
            batches.set_state(self.state)
        return batches

    def save_checkpoint(self, save: Callable[..., None], checkpoint_dir: Path, step: int, **arguments: Any) -> None:
        """Save LeRobot's checkpoint, and the state whose next batch is the first one not trained on."""
        save(checkpoint_dir=checkpoint_dir, step=step, **arguments)
        write_atomically(checkpoint_dir / STATE_FILE, json.dumps(self.loader.state_at(step)))


def _read_state(checkpoint: Path) -> Any:
    """Return the loader's state in a checkpoint; raise ArgumentError if it has none."""
    path = checkpoint / STATE_FILE
    if not path.is_file():
        raise ArgumentError(
            f"{path} does not exist, so the checkpoint is not one of lerobot_train; start a new run from its weights "
            "with --policy.path"
        )
    return json.loads(path.read_text())


def check_config(loader: Loader, config: Any, *, has_stats: bool = False) -> None:
    """Raise ArgumentError for options of LeRobot that ask for other batches than those of a loader."""
    from accelerate import PartialState

    policy, dataset, num_processes = config.policy, config.dataset, PartialState().num_processes
    if policy is None:
        raise ArgumentError("--reward_model: the loader has batches for policies; expected --policy.type or .path")
    observations, actions = _windows(loader)
    compared = [
        ("processes", num_processes, loader.world_size, "make the loader with **stream.torch.ranks()"),
        ("batch_size of all processes", config.batch_size * num_processes, loader.batch_size, "see --batch_size"),
        ("observations", policy.observation_delta_indices, observations, "see n_obs_steps of lerobot.sample"),
        ("actions", policy.action_delta_indices, actions, "see chunk_size of lerobot.sample"),
        (
            "drop_n_last_frames",
            getattr(policy, "drop_n_last_frames", 0),
            loader.data.sample_spec.select.min_future_actions - 1,
            "see drop_n_last_frames of lerobot.sample",
        ),
        ("dataset.streaming", dataset.streaming, False, "leave it out"),
        ("dataset.eval_split", getattr(dataset, "eval_split", 0), 0, "validate on a loader of another split"),
        ("dataset.use_imagenet_stats", dataset.use_imagenet_stats or has_stats, True, "give the statistics: stats="),
        ("dataset.image_transforms.enable", dataset.image_transforms.enable, False, "see Frames(augment=...)"),
    ]
    for name, in_lerobot, in_loader, remedy in compared:
        if in_lerobot != in_loader:
            raise ArgumentError(f"{name}: {in_lerobot} by LeRobot's options, {in_loader} of the loader; {remedy}")
    if loader.num_steps is not None and loader.num_steps < config.steps:
        raise ArgumentError(f"steps={config.steps}, and the loader ends at step {loader.num_steps}")


def _windows(loader: Loader) -> tuple[list[int] | None, list[int]]:
    """Return the steps of observations, None without a dimension of steps, and of actions, from t."""
    to_lerobot, span = conversion(loader, lerobot.ToLeRobot), loader.data.spec.action_span
    observations = [*range(-to_lerobot.now, 1)] if to_lerobot.has_steps else None
    return observations, [*range(span.firsts[0], span.firsts[0] + span.longest)]


class StandIn:
    """Attributes of a LeRobotDataset that LeRobot's script reads.

    The script also makes a sampler and a DataLoader, which need one frame, but are never started.

    Attributes:
        meta: Features, statistics and names.
        num_frames: Count of the samples of an epoch.
        num_episodes: Count of the episodes with samples.
    """

    episodes = absolute_to_relative_idx = None

    def __init__(self, loader: Loader, stats: Mapping[str, Any]) -> None:
        overview = loader.describe().values()
        self.num_frames = sum(member["samples"] for member in overview)
        self.num_episodes = sum(member["remaining_episodes"] for member in overview)
        features = dataset_features(loader)
        self.meta = SimpleNamespace(
            features=features,
            stats=dict(stats),
            camera_keys=[key for key, feature in features.items() if feature["dtype"] == "image"],
            has_language_columns=False,
            # One episode, long enough for any drop_n_last_frames.
            episodes={"dataset_from_index": [0], "dataset_to_index": [loader.data.spec.action_span.longest + 1]},
            # For the model card of --policy.push_to_hub.
            repo_id=",".join(loader.dataset_names),
            total_episodes=self.num_episodes,
            total_frames=self.num_frames,
            fps=loader.data.spec.rates[0],
            tasks=SimpleNamespace(index=()),
            robot_type=None,
        )

    def __len__(self) -> int:
        return 1


def dataset_features(loader: Loader) -> dict[str, dict[str, Any]]:
    """Return ``meta.features`` of a LeRobot dataset with the batches of a loader.

    Args:
        loader: Loader of ``lerobot.sample``.

    Raises:
        ArgumentError: The loader is of another trainer.
    """
    inputs, outputs = lerobot.features(loader)
    spec = loader.data.spec
    names = {"action": lerobot.action_feature_names(loader)}
    names |= {"observation.state": [*spec.states[0].names]} if spec.states else {}
    features: dict[str, dict[str, Any]] = {}
    for key, feature in (inputs | outputs).items():
        features[key] = {"dtype": "float32", "shape": feature["shape"], "names": names.get(key)}
        if feature["type"] == "VISUAL":
            channels, height, width = feature["shape"]
            image_names = ["height", "width", "channels"]
            features[key] = {"dtype": "image", "shape": (height, width, channels), "names": image_names}
    return features
