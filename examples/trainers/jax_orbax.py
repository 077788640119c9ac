"""Train with JAX in one or several processes, and save with Orbax.

    python examples/trainers/jax_orbax.py --root build/demo/oxe
    for i in 0 1; do
        python examples/trainers/jax_orbax.py --root build/demo/oxe --processes 2 --process-id $i \\
            --coordinator localhost:7777 --resume &
    done; wait
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from stream import make_loader
from stream.jax import ranks, to_devices


@jax.jit
def train_step(weights: Any, frames: jax.Array, action: jax.Array, action_mask: jax.Array) -> Any:
    """Return the weights after a step of gradient descent: actions [b, W, A] from the mean colour of frame t."""
    colours = jnp.mean(frames[:, 0] / 255.0, (1, 2))

    def loss(weights: Any) -> jax.Array:
        chunk = (colours @ weights["matrix"] + weights["bias"]).reshape(action.shape)
        return jnp.sum((chunk - action) ** 2 * action_mask) / jnp.sum(action_mask)

    return jax.tree.map(lambda weight, gradient: weight - 0.01 * gradient, weights, jax.grad(loss)(weights))


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and save a checkpoint every some steps."""
    args = parse(arguments)
    if args.processes > 1:
        jax.distributed.initialize(args.coordinator, args.processes, args.process_id)
    sharding = NamedSharding(Mesh(jax.devices(), ("data",)), PartitionSpec("data"))
    sample: dict[str, Any] = {"action": 4, "normalize": "mean_std", "num_workers": 1, "num_steps": args.steps}
    loader = make_loader(args.root, args.mixture, batch_size=args.batch_size, **sample, **ranks(sharding))
    batches = to_devices(loader, sharding)
    _, chunk, dims = loader.batch_at(0)["action"].shape
    weights = {"matrix": jnp.zeros((3, chunk * dims)), "bias": jnp.zeros(chunk * dims)}
    weights = jax.device_put(weights, NamedSharding(sharding.mesh, PartitionSpec()))
    manager = ocp.CheckpointManager(args.out.resolve())
    if args.resume:
        items = ocp.args.Composite(weights=ocp.args.StandardRestore(weights), loader=ocp.args.JsonRestore())
        checkpoint = manager.restore(None, args=items)
        weights = checkpoint.weights
        batches.set_state(checkpoint.loader)
    for batch in batches:
        weights = train_step(weights, batch["frames"], batch["action"], batch["action_mask"])
        if batches.step % args.every == 0:
            items = ocp.args.Composite(
                weights=ocp.args.StandardSave(weights), loader=ocp.args.JsonSave(batches.get_state())
            )
            manager.save(batches.step, args=items)
            manager.wait_until_finished()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("build/demo/oxe"), help="converted root")
    parser.add_argument("--mixture", default="oxe29", help="a mixture, a dataset, or a YAML file")
    parser.add_argument("--batch-size", type=int, default=32, help="rows of all processes together")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--out", type=Path, default=Path("runs/trainers_jax"), help="for checkpoints")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint in --out")
    parser.add_argument("--processes", type=int, default=1, help="count of processes that train together")
    parser.add_argument("--process-id", type=int, help="of this process, from 0")
    parser.add_argument("--coordinator", help="HOST:PORT of process 0")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
