"""Compute the expected values of this folder with the transforms of OpenVLA and Octo; README.md says how to run it."""

from __future__ import annotations

import json
import sys
import types
import zlib
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from convert.index.derived import vector_inputs
from convert.registry.dataset import DatasetSpec
from convert.registry.registry import load_registry
from convert.source.features import Feature
from convert.source.rlds.metadata import flatten_features

HERE = Path(__file__).parent
LENGTHS = (2, 3, 19, 24)
"""Steps of the episodes of each dataset; the references fail on an episode of one step of bridge."""
BROKEN = {("octo", "robonet")}
"""Transforms that raise an error: this one joins its state without saying along which axis."""
NAMES = {"bridge": "bridge_oxe", "fmb": "fmb_dataset", "robo_set": "roboset"}
"""Names in the references, where they are not those of TFDS."""
GRIPPERS = (-1, -0.4, 0, 0, 0.02, 0.3, 0.97, 1)


def load_transforms(root: Path, package: str, module: str) -> dict[str, Any]:
    """Import the transforms of a checkout; packages are empty, so that nothing else of it is imported."""
    fakes = {"dlimp": "DLataset", "prismatic.overwatch": "initialize_overwatch", "tqdm": "tqdm"}
    for name, attribute in fakes.items():
        sys.modules[name] = fake = types.ModuleType(name)
        setattr(fake, attribute, lambda *_, **__: None)
    parts = package.split(".")
    for depth in range(1, len(parts) + 1):
        stub = types.ModuleType(".".join(parts[:depth]))
        stub.__path__ = [str(root.joinpath(*parts[:depth]))]
        sys.modules[stub.__name__] = stub
    return import_module(f"{package}.{module}").OXE_STANDARDIZATION_TRANSFORMS


def step_features(spec: DatasetSpec) -> dict[str, Feature]:
    """Return the small numeric features of action and observation."""
    tree = json.loads((HERE.parents[2] / f"configs/features/{spec.tfds_name}.json").read_text())
    leaves = flatten_features(tfds.features.FeaturesDict.from_json(tree), context=spec.name).values()
    wanted = [leaf for leaf in leaves if leaf.level == "step" and leaf.name.startswith(("action", "observation/"))]
    return {leaf.name: leaf for leaf in wanted if leaf.dtype != "string" and (leaf.size or 0) <= 64}


def random_values(leaf: Feature, steps: int, rng: np.random.Generator) -> np.ndarray:
    """Return plausible numbers of a feature as its type holds them, float32 [steps, size]."""
    path, size = leaf.name, leaf.size or 1
    values = np.cumsum(rng.normal(0, 0.1, (steps, size)), axis=0)
    gripper = np.repeat(rng.choice(GRIPPERS, steps), rng.integers(1, 4, steps))[:steps]
    if "grip" in path or "close" in path:
        values[:] = gripper[:, None]
    elif path in ("action", "observation/state"):
        values[:, -1] = gripper
    if path == "action" and size == 8:
        # Two first steps: half a turn about x, and a quarter turn about y, which is gimbal lock.
        values[:, 3:7] = rng.normal(0, 1, (steps, 4))
        values[:2, 3:7] = np.array([[1, 0, 0, 0], [0, 0.5**0.5, 0, 0.5**0.5]])[:steps]
        values[:, 3:7] /= np.linalg.norm(values[:, 3:7], axis=1, keepdims=True)
    return values.astype(leaf.dtype).astype(np.float32)


def tensor(leaf: Feature, values: np.ndarray) -> tf.Tensor:
    """Return values as a pipeline of the references reads them."""
    if leaf.encoding == "zlib":
        return tf.constant([zlib.compress(row.tobytes()) for row in values])
    return tf.constant(values.reshape(-1, *leaf.shape).astype(leaf.dtype))


def run(transform: Any, leaves: dict[str, Feature], features: dict[str, np.ndarray]) -> np.ndarray:
    """Return the action of one episode, float32 [steps, dims]; NaN for steps that the transform drops."""
    steps = len(next(iter(features.values())))
    empty = tf.fill([steps], "")
    observation: dict[str, Any] = {"row": tf.range(steps), "natural_language_instruction": empty}
    images = ("image_with_depth", "exterior_image_1_left", "exterior_image_2_left")
    observation |= dict.fromkeys(images, tf.zeros((steps, 1))) | {"instruction": tf.ones((steps, 2), tf.int32)}
    tree: dict[str, Any] = {"observation": observation, "language_instruction": empty}
    for path, values in features.items():
        head, _, rest = path.partition("/")
        (tree.setdefault(head, {}) if rest else tree)[rest or head] = tensor(leaves[path], values)
    found = transform(tree)
    out = np.full((steps, found["action"].shape[1]), np.nan, np.float32)
    out[found["observation"]["row"].numpy()] = found["action"].numpy()
    return out


def real_episodes(folder: Path) -> list[dict[str, np.ndarray]]:
    """Return action and state of the episodes of bridge_dataset, in the order of the files."""
    builder = tfds.builder_from_directory(str(folder))
    read = tfds.ReadConfig(interleave_cycle_length=1)
    found = []
    for split in ("train", "val"):
        for episode in builder.as_dataset(split=split, shuffle_files=False, read_config=read):
            steps = list(episode["steps"].as_numpy_iterator())
            action, state = [s["action"] for s in steps], [s["observation"]["state"] for s in steps]
            found.append({"action": np.array(action), "observation/state": np.array(state)})
    return found


def main() -> None:
    """Write synthetic.npz and bridge_dataset.npz."""
    openvla, octo, bridge = map(Path, sys.argv[1:])
    projects = {
        "openvla": load_transforms(openvla, "prismatic.vla.datasets.rlds.oxe", "transforms"),
        "octo": load_transforms(octo, "octo.data.oxe", "oxe_standardization_transforms"),
    }
    saved: dict[str, Any] = {"lengths": np.array(LENGTHS)}
    real: dict[str, Any] = {}
    for name, spec in load_registry().datasets.items():
        key = NAMES.get(name, spec.tfds_name)
        leaves = step_features(spec)
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        episodes = [{path: random_values(leaf, n, rng) for path, leaf in leaves.items()} for n in LENGTHS]
        for project, transforms in projects.items():
            if key in transforms and (project, name) not in BROKEN:
                saved[f"{name}|{project}"] = np.concatenate([run(transforms[key], leaves, each) for each in episodes])
                taken = [t.path for v in spec.vectors.values() for t in vector_inputs(v) if t.path in leaves]
                for path in taken:
                    saved[f"{name}|{path}"] = np.concatenate([each[path] for each in episodes])
                if name == "bridge_dataset":
                    found = [run(transforms[key], leaves, each) for each in real_episodes(bridge)]
                    real["lengths"], real[project] = np.array([len(each) for each in found]), np.concatenate(found)
    np.savez_compressed(HERE / "synthetic.npz", **saved)
    np.savez_compressed(HERE / "bridge_dataset.npz", **real)


if __name__ == "__main__":
    main()
