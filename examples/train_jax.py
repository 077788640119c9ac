"""Train a small latent-action model on frame pairs with JAX.

Two frames become a few numbers, and these and frame t the other frame. After Ctrl-C, --resume goes on where it stopped.

    python examples/train_jax.py --root build/demo/oxe --mixture oxe29 --steps 200 --out runs/demo_jax
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

import grain
import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax import lax

from stream import StreamError
from stream.format import FormatError
from stream.jax import make_loader, to_devices

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


@partial(jax.jit, donate_argnums=0)
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
    settings = {"batch_size": args.batch_size, "num_workers": args.num_workers, "num_steps": args.steps}
    loader = make_loader(args.root, args.mixture, seed=args.seed, **settings)
    batches = to_devices(loader)  # with several devices, give the sharding of the rows
    weights = init(jax.random.key(args.seed))
    zeros = jax.tree.map(jnp.zeros_like, weights)
    state = {"weights": weights, "mean": zeros, "square": jax.tree.map(jnp.copy, zeros), "count": jnp.zeros(())}
    losses: list[jax.Array] = []
    manager = ocp.CheckpointManager(Path(args.out).resolve() / "checkpoints")
    if args.resume != (manager.latest_step() is not None):
        raise FileNotFoundError(f"{args.out}/checkpoints: give --resume if a run is there, and only then")
    if args.resume:
        items = {"state": ocp.args.StandardRestore(state), "loader": grain.checkpoint.CheckpointRestore(batches)}
        saved = manager.restore(None, args=ocp.args.Composite(**items, losses=ocp.args.JsonRestore()))
        state, losses = saved.state, [jnp.array(pair) for pair in saved.losses]
        print(f"going on at step {batches.step}")
    loader.save(Path(args.out) / "loader.json")

    def save() -> None:
        items = {"state": ocp.args.StandardSave(state), "loader": grain.checkpoint.CheckpointSave(batches)}
        items["losses"] = ocp.args.JsonSave([pair.tolist() for pair in losses])
        manager.save(batches.step, args=ocp.args.Composite(**items))
        manager.wait_until_finished()

    interrupted: list[int] = []  # looked at after each step
    signal.signal(signal.SIGINT, lambda number, _: interrupted.append(number))
    began, begin_step = time.perf_counter(), batches.step
    for batch in batches:
        state, loss = train_step(state, batch["frames"], args.lr)
        losses.append(loss.block_until_ready())  # else the model's time would count as waiting for data
        if batches.step % args.every == 0 or batches.step == args.steps or interrupted:
            save()
            seconds, waited = time.perf_counter() - began, loader.stats()["wait_s"]
            speed = f"{(batches.step - begin_step) / seconds:.1f} steps/s, {waited / seconds:.0%} of the time waiting"
            print(f"step {batches.step}: loss {loss[0]:.5f}, {speed} for data", flush=True)
        if interrupted:
            print(f"interrupted; saved to {args.out}/checkpoints, go on with --resume", file=sys.stderr)
            return 130
    tenth = max(1, len(losses) // 10)
    for name, part in (("first", losses[:tenth]), ("last", losses[-tenth:])):
        mean = jnp.stack(part).mean(0)
        print(f"{name} {tenth} steps: loss {mean[0]:.5f}, that of predicting frame t {mean[1]:.5f}")
    return 0


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    numbers = {"steps": 200, "batch-size": 32, "num-workers": 2, "every": 50, "seed": 0, "lr": 2e-3}
    for name, default in {"root": "build/demo/oxe", "mixture": "oxe29", "out": "runs/demo_jax", **numbers}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    args = parser.parse_args()
    try:
        sys.exit(train(args))
    except (StreamError, FormatError, FileNotFoundError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
