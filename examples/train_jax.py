"""Train a small latent-action model on frame pairs with JAX.

Two frames become a few numbers, and these and frame t the other frame. After Ctrl-C, --resume goes on where it stopped.

    python examples/train_jax.py --root build/demo/oxe --mixture oxe29 --steps 200 --out runs/demo_jax

With several processes (--processes, and on a machine that JAX does not know --coordinator and --process-id) each reads
and decodes its rows of the batch only, and they train one model. A run may go on with another number of them.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from stream import StreamError, make_loader
from stream.jax import ranks, to_devices

SIZE = 32  # frames are made this small, so that the model trains on a CPU


def init(key: jax.Array, *, latent: int = 16, width: int = 16) -> Any:
    """Return the weights: kernels [height, width, in, out] and matrices [in, out]."""
    size = 2 * width * (SIZE // 4) ** 2
    shapes: dict[str, list[tuple[int, ...]]] = {
        "encoder": [(4, 4, 6, width), (4, 4, width, 2 * width), (size, latent)],
        "look": [(4, 4, 3, width), (4, 4, width, 2 * width), (latent, size)],
        "draw": [(3, 3, 4 * width, 2 * width), (4, 4, 2 * width, width), (4, 4, width, 3)],
    }
    weights = {}
    for part, kernels in shapes.items():
        key, *keys = jax.random.split(key, 1 + len(kernels))
        weights[part] = [
            jax.random.normal(k, n) * math.prod(n[:-1]) ** -0.5 for k, n in zip(keys, kernels, strict=True)
        ]
    weights["draw"][-1] *= 0  # begins as the baseline, which says that nothing moves
    return weights


def predict(weights: Any, first: jax.Array, last: jax.Array) -> jax.Array:
    """Draw frame t + offset, float32 [b, SIZE, SIZE, 3]; all that is told of ``last`` are the latent's few numbers."""
    conv = partial(lax.conv_general_dilated, padding="SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    conv_up = partial(lax.conv_transpose, strides=(2, 2), padding="SAME")

    def down(frames: jax.Array, one: jax.Array, two: jax.Array) -> jax.Array:
        return jax.nn.gelu(conv(jax.nn.gelu(conv(frames, one, (2, 2))), two, (2, 2)))

    *kernels, matrix = weights["encoder"]
    latent = down(jnp.concatenate([first, last - first], -1), *kernels).reshape(len(first), -1) @ matrix
    *kernels, spread = weights["look"]
    seen = down(first, *kernels)
    one, two, three = weights["draw"]
    drawn = jax.nn.gelu(conv(jnp.concatenate([seen, (latent @ spread).reshape(seen.shape)], -1), one, (1, 1)))
    return first + conv_up(jax.nn.gelu(conv_up(drawn, two)), three)


def shrink(frames: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the first and the last frame of uint8 [b, F, H, W, 3] as float32 [b, SIZE, SIZE, 3] in 0..1."""
    stride = max(1, frames.shape[2] // (2 * SIZE))
    pair = frames[:, jnp.array([0, -1]), stride // 2 :: stride, stride // 2 :: stride].astype(jnp.float32) / 255
    pair = pair.reshape(len(frames), 2, SIZE, pair.shape[2] // SIZE, SIZE, pair.shape[3] // SIZE, 3).mean((3, 5))
    return pair[:, 0], pair[:, 1]


def train_step(state: Any, frames: jax.Array, rate: float) -> tuple[Any, jax.Array]:
    """One step of Adam; returns the new state, and the losses of the model and of predicting frame t."""
    first, last = shrink(frames)
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((predict(w, first, last) - last) ** 2))(state["weights"])
    count = state["count"] + 1
    mean = jax.tree.map(lambda old, g: 0.9 * old + 0.1 * g, state["mean"], gradient)
    square = jax.tree.map(lambda old, g: 0.999 * old + 0.001 * g * g, state["square"], gradient)
    rate = rate * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    weights = jax.tree.map(lambda w, m, s: w - rate * m / (jnp.sqrt(s) + 1e-8), state["weights"], mean, square)
    losses = jnp.stack([loss, jnp.mean((first - last) ** 2)])
    return {"weights": weights, "mean": mean, "square": square, "count": count}, losses


def train(args: argparse.Namespace) -> int:
    """Train; return the exit code."""
    if args.processes > 1:
        jax.distributed.initialize(args.coordinator, args.processes, args.process_id)
    first = jax.process_index() == 0
    mesh = Mesh(jax.devices(), ("data",))
    rows, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    settings = {"batch_size": args.batch_size, "num_workers": args.num_workers, "num_steps": args.steps}
    settings["cache"] = args.cache
    loader = make_loader(args.root, args.mixture, seed=args.seed, **settings, **ranks(rows))
    batches = to_devices(loader, rows)
    step = jax.jit(train_step, donate_argnums=0, out_shardings=everywhere)
    weights = init(jax.random.key(args.seed))
    zeros = jax.tree.map(jnp.zeros_like, weights)
    state = {"weights": weights, "mean": zeros, "square": jax.tree.map(jnp.copy, zeros), "count": jnp.zeros(())}
    state = jax.device_put(state, everywhere)
    losses: list[list[float]] = []
    manager = ocp.CheckpointManager(Path(args.out).resolve() / "checkpoints")
    if args.resume != (manager.latest_step() is not None):
        raise FileNotFoundError(f"{args.out}/checkpoints: give --resume if a run is there, and only then")
    if args.resume:
        items = {"state": ocp.args.StandardRestore(state), "loader": ocp.args.JsonRestore()}
        saved = manager.restore(None, args=ocp.args.Composite(**items, losses=ocp.args.JsonRestore()))
        state, losses = saved.state, saved.losses
        batches.set_state(saved.loader)
        if first:
            print(f"going on at step {batches.step}")
    if first:
        loader.save(Path(args.out) / "loader.json")

    def save() -> None:
        # Not with Grain's handler, which can only restore into as many processes as there were.
        items = {"state": ocp.args.StandardSave(state), "loader": ocp.args.JsonSave(batches.get_state())}
        items["losses"] = ocp.args.JsonSave(losses)
        manager.save(batches.step, args=ocp.args.Composite(**items))
        manager.wait_until_finished()

    interrupted: list[int] = []  # looked at after each step, after which all processes have to stop

    def stops() -> bool:
        alone = jax.process_count() == 1
        return bool(interrupted if alone else multihost_utils.process_allgather(np.array(len(interrupted))).any())

    signal.signal(signal.SIGINT, lambda number, _: interrupted.append(number))
    began, begin_step = time.perf_counter(), batches.step
    for batch in batches:
        state, loss = step(state, batch["frames"], args.lr)
        losses.append(np.asarray(loss).tolist())  # waits, else the model's time would count as waiting for data
        stopping = stops()
        if batches.step % args.every == 0 or batches.step == args.steps or stopping:
            save()
            seconds, waited = time.perf_counter() - began, loader.stats()["wait_s"]
            speed = f"{(batches.step - begin_step) / seconds:.1f} steps/s, {waited / seconds:.0%} of the time waiting"
            if first:
                print(f"step {batches.step}: loss {losses[-1][0]:.5f}, {speed} for data", flush=True)
        if stopping:
            if first:
                print(f"interrupted; saved to {args.out}/checkpoints, go on with --resume", file=sys.stderr)
            return 130
    tenth = max(1, len(losses) // 10)
    for name, part in (("first", losses[:tenth]), ("last", losses[-tenth:])) if first else ():
        mean = np.mean(part, axis=0)
        print(f"{name} {tenth} steps: loss {mean[0]:.5f}, that of predicting frame t {mean[1]:.5f}")
    return 0


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = {"steps": 200, "batch-size": 32, "num-workers": 2, "every": 50, "seed": 0, "lr": 2e-3}
    for name, default in {"root": "build/demo/oxe", "mixture": "oxe29", "out": "runs/demo_jax", **numbers}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"default: {default}")
    parser.add_argument("--cache", metavar="DIR:SIZE", help="for s3:// and the like: local folder of what was read")
    parser.add_argument("--processes", type=int, default=1, help="that train together, of which this is one")
    parser.add_argument("--process-id", type=int, help="of this process, from 0; Slurm and others tell JAX")
    parser.add_argument("--coordinator", help="HOST:PORT of process 0; Slurm and others tell JAX")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    args = parser.parse_args()
    try:
        sys.exit(train(args))
    except (StreamError, FileNotFoundError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
