"""Train a small latent-action model on frame pairs with JAX.

An encoder turns two frames into a few numbers; a decoder draws the second frame from the first and these numbers. After
Ctrl-C, --resume continues where the run stopped.

    python examples/train_jax.py --root build/demo/oxe --mixture oxe29 --steps 200 --out runs/demo_jax

With several processes (--processes; also --coordinator and --process-id on a cluster that JAX does not recognise) each
reads and decodes only its rows of the batch, and they train one model. A run may continue with another number of them.
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
    flat_size = 2 * width * (SIZE // 4) ** 2
    shapes: dict[str, list[tuple[int, ...]]] = {
        "encoder": [(4, 4, 6, width), (4, 4, width, 2 * width), (flat_size, latent)],
        "look": [(4, 4, 3, width), (4, 4, width, 2 * width), (latent, flat_size)],
        "draw": [(3, 3, 4 * width, 2 * width), (4, 4, 2 * width, width), (4, 4, width, 3)],
    }
    weights = {}
    for part_name, kernels in shapes.items():
        key, *keys = jax.random.split(key, 1 + len(kernels))
        weights[part_name] = [
            jax.random.normal(subkey, kernel_shape) * math.prod(kernel_shape[:-1]) ** -0.5
            for subkey, kernel_shape in zip(keys, kernels, strict=True)
        ]
    weights["draw"][-1] *= 0  # starts as the baseline, which predicts that nothing moves
    return weights


def predict(weights: Any, first: jax.Array, last: jax.Array) -> jax.Array:
    """Draw frame t + offset, float32 [b, SIZE, SIZE, 3], from frame t and the few numbers of the latent."""
    conv = partial(lax.conv_general_dilated, padding="SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    conv_up = partial(lax.conv_transpose, strides=(2, 2), padding="SAME")

    def down(frames: jax.Array, first_kernel: jax.Array, second_kernel: jax.Array) -> jax.Array:
        return jax.nn.gelu(conv(jax.nn.gelu(conv(frames, first_kernel, (2, 2))), second_kernel, (2, 2)))

    *kernels, matrix = weights["encoder"]
    latent = down(jnp.concatenate([first, last - first], -1), *kernels).reshape(len(first), -1) @ matrix
    *kernels, spread = weights["look"]
    features = down(first, *kernels)
    mix_kernel, *up_kernels = weights["draw"]
    inputs = jnp.concatenate([features, (latent @ spread).reshape(features.shape)], -1)
    drawn = conv(inputs, mix_kernel, (1, 1))
    for kernel in up_kernels:
        drawn = conv_up(jax.nn.gelu(drawn), kernel)
    return first + drawn


def shrink(frames: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the first and the last frame of uint8 [b, F, H, W, 3] as float32 [b, SIZE, SIZE, 3] in 0..1."""
    stride = max(1, frames.shape[2] // (2 * SIZE))
    pair = frames[:, jnp.array([0, -1]), stride // 2 :: stride, stride // 2 :: stride].astype(jnp.float32) / 255
    pair = pair.reshape(len(frames), 2, SIZE, pair.shape[2] // SIZE, SIZE, pair.shape[3] // SIZE, 3).mean((3, 5))
    return pair[:, 0], pair[:, 1]


def train_step(state: Any, frames: jax.Array, rate: float) -> tuple[Any, jax.Array]:
    """Return the state after a step of Adam, and the losses of the model and of predicting frame t."""
    first, last = shrink(frames)
    loss_of = jax.value_and_grad(lambda weights: jnp.mean((predict(weights, first, last) - last) ** 2))
    loss, gradient = loss_of(state["weights"])
    step_count = state["count"] + 1
    mean = jax.tree.map(lambda old, g: 0.9 * old + 0.1 * g, state["mean"], gradient)
    mean_square = jax.tree.map(lambda old, g: 0.999 * old + 0.001 * g * g, state["square"], gradient)
    rate = rate * jnp.sqrt(1 - 0.999**step_count) / (1 - 0.9**step_count)
    weights = jax.tree.map(lambda w, m, s: w - rate * m / (jnp.sqrt(s) + 1e-8), state["weights"], mean, mean_square)
    losses = jnp.stack([loss, jnp.mean((first - last) ** 2)])
    return {"weights": weights, "mean": mean, "square": mean_square, "count": step_count}, losses


def train(args: argparse.Namespace) -> int:
    """Train; return the exit code."""
    if args.processes > 1:
        jax.distributed.initialize(args.coordinator, args.processes, args.process_id)
    is_first = jax.process_index() == 0
    mesh = Mesh(jax.devices(), ("data",))
    row_sharding, replicated = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    loader_arguments = {name: getattr(args, name) for name in ("batch_size", "seed", "num_workers", "cache")}
    loader = make_loader(args.root, args.mixture, num_steps=args.steps, **loader_arguments, **ranks(row_sharding))
    batches = to_devices(loader, row_sharding)
    jitted_step = jax.jit(train_step, donate_argnums=0, out_shardings=replicated)
    weights = init(jax.random.key(args.seed))
    zeros = jax.tree.map(jnp.zeros_like, weights)
    state = {"weights": weights, "mean": zeros, "square": jax.tree.map(jnp.copy, zeros), "count": jnp.zeros(())}
    state = jax.device_put(state, replicated)
    losses: list[list[float]] = []
    manager = ocp.CheckpointManager(Path(args.out).resolve() / "checkpoints")
    if args.resume != (manager.latest_step() is not None):
        raise FileNotFoundError(f"{args.out}/checkpoints: give --resume if it holds a run, and only then")
    if args.resume:
        items = {"state": ocp.args.StandardRestore(state), "loader": ocp.args.JsonRestore()}
        saved: Any = manager.restore(None, args=ocp.args.Composite(**items, losses=ocp.args.JsonRestore()))
        state, losses = saved.state, saved.losses
        batches.set_state(saved.loader)
        if is_first:
            print(f"continuing at step {batches.step}")
    if is_first:
        loader.save(Path(args.out) / "loader.json")

    def save() -> None:
        # Grain's handler can only restore into the same number of processes.
        items: dict[str, Any] = {
            "state": ocp.args.StandardSave(state),
            "loader": ocp.args.JsonSave(batches.get_state()),
        }
        items["losses"] = ocp.args.JsonSave(losses)  # pyright: ignore[reportArgumentType]
        manager.save(batches.step, args=ocp.args.Composite(**items))
        manager.wait_until_finished()

    interrupted: list[int] = []  # looked at after each step, after which all processes have to stop

    def stops() -> bool:
        if jax.process_count() == 1:
            return bool(interrupted)
        return bool(multihost_utils.process_allgather(np.array(len(interrupted))).any())

    signal.signal(signal.SIGINT, lambda number, _: interrupted.append(number))
    start_time, start_step = time.perf_counter(), batches.step
    for batch in batches:
        state, loss = jitted_step(state, batch["frames"], args.lr)
        losses.append(np.asarray(loss).tolist())  # waits, else the model's time would count as waiting for data
        stopping = stops()
        if batches.step % args.every == 0 or batches.step == args.steps or stopping:
            save()
            seconds = time.perf_counter() - start_time
            speed, waiting = (batches.step - start_step) / seconds, loader.stats()["wait_s"] / seconds
            if is_first:
                progress = f"loss {losses[-1][0]:.5f}, {speed:.1f} steps/s, {waiting:.0%} of the time waiting for data"
                print(f"step {batches.step}: {progress}", flush=True)
        if stopping:
            if is_first:
                print(f"interrupted; saved to {args.out}/checkpoints, continue with --resume", file=sys.stderr)
            return 130
    tenth = max(1, len(losses) // 10)
    for part_name, part_losses in (("first", losses[:tenth]), ("last", losses[-tenth:])) if is_first else ():
        mean_losses = np.mean(part_losses, axis=0)
        print(f"{part_name} {tenth} steps: loss {mean_losses[0]:.5f}, that of predicting frame t {mean_losses[1]:.5f}")
    return 0


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = {"steps": 200, "batch-size": 32, "num-workers": 2, "every": 50, "seed": 0, "lr": 2e-3}
    for option_name, default in {
        "root": "build/demo/oxe",
        "mixture": "oxe29",
        "out": "runs/demo_jax",
        **numbers,
    }.items():
        parser.add_argument(f"--{option_name}", type=type(default), default=default, help=f"default: {default}")
    parser.add_argument("--cache", metavar="DIR:SIZE", help="local folder for the parts read of a remote root")
    parser.add_argument("--processes", type=int, default=1, help="count of processes that train together")
    parser.add_argument("--process-id", type=int, help="of this process, from 0; JAX finds it under Slurm and others")
    parser.add_argument("--coordinator", help="HOST:PORT of process 0; JAX finds it under Slurm and others")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint in --out")
    args = parser.parse_args()
    try:
        sys.exit(train(args))
    except (StreamError, FileNotFoundError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
