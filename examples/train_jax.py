"""Train a small latent-action model on frame pairs with JAX, in one process or many.

An encoder turns two frames into a few numbers; a decoder draws the second frame from the first and these numbers. After
Ctrl-C, --resume continues exactly, with any number of --processes, each of which decodes only its rows:

    python examples/train_jax.py --root build/demo/oxe --mixture oxe29 --steps 200 --out runs/demo_jax
"""

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import pairstream as ps

SIZE, LATENT, WIDTH = 32, 16, 256  # height and width of frames, numbers of a latent action, features
REPORT = "step {}: loss {:.5f}, that of predicting frame t {:.5f}, {:.1f} s waited for data"


def init(key: jax.Array) -> Any:
    """Return the weights: a matrix a layer."""
    pixels = SIZE * SIZE * 3
    shapes = {"encode": (2 * pixels, LATENT), "look": (pixels + LATENT, WIDTH), "draw": (WIDTH, pixels)}
    keys = jax.random.split(key, len(shapes))
    weights = {
        name: jax.random.normal(subkey, shape) * shape[0] ** -0.5
        for subkey, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    return weights | {"draw": jnp.zeros(shapes["draw"])}  # starts as the baseline: nothing moves


def losses_of(weights: Any, frames: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the loss, and both it and that of predicting frame t [2], from frames uint8 [b, 2, SIZE, SIZE, 3]."""
    first, last = jnp.moveaxis(frames.reshape(len(frames), 2, -1) / 255.0, 1, 0)
    latent = jnp.concatenate([first, last - first], -1) @ weights["encode"]
    features = jax.nn.gelu(jnp.concatenate([first, latent], -1) @ weights["look"])
    loss = jnp.mean((first + features @ weights["draw"] - last) ** 2)
    return loss, jnp.stack([loss, jnp.mean((first - last) ** 2)])


def train_step(state: Any, frames: jax.Array, rate: float) -> tuple[Any, jax.Array]:
    """Return the state after a step of Adam, and both losses."""
    gradient, both_losses = jax.grad(losses_of, has_aux=True)(state["weights"], frames)
    count = state["count"] + 1
    mean = jax.tree.map(lambda old, g: 0.9 * old + 0.1 * g, state["mean"], gradient)
    square = jax.tree.map(lambda old, g: 0.999 * old + 0.001 * g * g, state["square"], gradient)
    rate = rate * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    weights = jax.tree.map(lambda w, m, s: w - rate * m / (jnp.sqrt(s) + 1e-8), state["weights"], mean, square)
    return {"weights": weights, "mean": mean, "square": square, "count": count}, both_losses


def main() -> None:
    """Train; end with exit code 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="build/demo/oxe", help="converted root, also s3://... and others")
    parser.add_argument("--cache", metavar="DIR:SIZE", help="local folder for the parts read of a remote root")
    parser.add_argument("--mixture", default="oxe29", help="a mixture, a dataset, or a YAML file")
    parser.add_argument("--out", type=Path, default=Path("runs/demo_jax"), help="for loader.json and checkpoints")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint in --out, if there is one")
    for name, default in {"steps": 200, "every": 50, "batch-size": 32, "num-workers": 2, "seed": 0, "lr": 1e-3}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"default: {default}")
    parser.add_argument("--processes", type=int, default=1, help="count of processes that train together")
    parser.add_argument("--process-id", type=int, help="of this process, from 0; JAX finds it under Slurm and others")
    parser.add_argument("--coordinator", help="HOST:PORT of process 0; JAX finds it under Slurm and others")
    args = parser.parse_args()

    if args.processes > 1:
        jax.distributed.initialize(args.coordinator, args.processes, args.process_id)
    mesh = Mesh(jax.devices(), ("data",))
    row_sharding, replicated = (NamedSharding(mesh, spec) for spec in (PartitionSpec("data"), PartitionSpec()))
    settings = {name: getattr(args, name) for name in ("batch_size", "num_workers", "seed", "cache")}
    settings |= {"frames": ps.Frames(size=(SIZE, SIZE)), **ps.jax.ranks(row_sharding)}
    loader = ps.make_loader(args.root, args.mixture, num_steps=args.steps, **settings)
    batches = ps.jax.to_devices(loader, row_sharding)
    weights = init(jax.random.key(args.seed))
    zeros = jax.tree.map(jnp.zeros_like, weights)
    state = jax.device_put({"weights": weights, "mean": zeros, "square": zeros, "count": jnp.zeros(())}, replicated)
    losses: list[list[float]] = []
    jitted_step = jax.jit(train_step, out_shardings=replicated)
    manager = ocp.CheckpointManager(args.out.resolve() / "checkpoints")
    if manager.latest_step() is not None:
        if not args.resume:
            sys.exit(f"error: {args.out}/checkpoints holds a run: give --resume, or another --out")
        items = {"state": ocp.args.StandardRestore(state), "loader": ocp.args.JsonRestore()}
        saved: Any = manager.restore(None, args=ocp.args.Composite(**items, losses=ocp.args.JsonRestore()))
        state, losses = saved.state, saved.losses
        batches.set_state(saved.loader)
    if jax.process_index() == 0:
        loader.save(args.out / "loader.json")
        print(f"starts at step {batches.step}; Ctrl-C saves a checkpoint, --resume continues", file=sys.stderr)

    signals: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: signals.append(number))
    for batch in batches:
        state, both_losses = jitted_step(state, batch["frames"], args.lr)
        losses.append(np.asarray(both_losses).tolist())
        is_stopping = multihost_utils.process_allgather(np.array(len(signals))).any()  # all stop after the same step
        if batches.step % args.every == 0 or batches.step == args.steps or is_stopping:
            items = {"state": ocp.args.StandardSave(state), "loader": ocp.args.JsonSave(batches.get_state())}
            manager.save(batches.step, args=ocp.args.Composite(**items, losses=ocp.args.JsonSave(losses)))
            manager.wait_until_finished()
            if jax.process_index() == 0:
                print(REPORT.format(batches.step, *losses[-1], loader.stats()["wait_s"]), flush=True)
        if is_stopping:
            sys.exit(130)


if __name__ == "__main__":
    try:
        main()
    except ps.StreamError as error:
        sys.exit(f"error: {error}")
