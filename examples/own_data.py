"""Your own data, from files to a policy: a function that yields the episodes of a file, conversion, and training.

    python examples/own_data.py --out runs/own

It draws recordings of a dot that moves to a target, converts them to runs/own/root and trains on them. For your data,
change `episodes` and give `--recordings '/data/*.npz'`. Each file becomes a shard: files are read in parallel, and an
interrupted conversion continues with the next file. After Ctrl-C in training, --resume continues exactly.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

SIZE, CHUNK = 32, 4  # height and width of frames, actions of a chunk
REPORT = "step {}: loss {:.5f}, that of predicting the mean action {:.5f}, {:.1f} s waited for data"


def episodes(path: str) -> Iterator[dict[str, Any]]:
    """Yield the episodes of a recording: here one, of arrays with a value for each step."""
    recording = np.load(path)
    yield {
        "steps": {
            "observation": {"front": recording["front"], "state": recording["state"]},  # uint8 [n, H, W, 3], [n, S]
            "action": recording["action"],  # [n, A]
        },
        "episode": {"language_instruction": str(recording["instruction"]), "success": True},
    }


def record(folder: Path, count: int = 20, steps: int = 24) -> None:
    """Write recordings of a red dot that moves to a green one; its state is its position, its action the next move."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for number in range(count):
        positions, target = [random.uniform(4, SIZE - 4, 2)], random.uniform(4, SIZE - 4, 2)
        for _ in range(steps):
            positions.append(positions[-1] + 0.15 * (target - positions[-1]))
        state = np.array(positions, np.float32)
        front = np.zeros((steps, SIZE, SIZE, 3), np.uint8)
        for frame, position in zip(front, state[:-1], strict=True):
            for channel, (x, y) in enumerate((position.astype(int), target.astype(int))):
                frame[y - 1 : y + 2, x - 1 : x + 2, channel] = 255
        arrays: dict[str, Any] = {"front": front, "state": state[:-1], "action": np.diff(state, axis=0)}
        np.savez(folder / f"{number:03d}.npz", **arrays, instruction="Move to the green dot.")


def train(args: argparse.Namespace, root: Path) -> None:
    """Train a policy; end with exit code 130 after Ctrl-C."""
    import torch  # here, as the processes that convert need neither
    from torch import nn

    import pairstream as ps

    torch.manual_seed(0)
    window = {"frames": ps.Frames([0], size=(SIZE, SIZE)), "action": CHUNK, "normalize": "mean_std"}
    loader = ps.make_loader(root, "own_data", batch_size=32, num_steps=args.steps, num_workers=1, **window)
    batches = ps.torch.to_device(loader, "cpu")
    num_actions, num_states = (len(names["own_data"]) for names in (loader.action_names, loader.state_names))
    first_layer, last_layer = nn.Linear(SIZE * SIZE * 3 + num_states, 128), nn.Linear(128, CHUNK * num_actions)
    model = nn.Sequential(first_layer, nn.GELU(), last_layer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    checkpoint, losses = args.out / "checkpoint.pt", []
    if args.resume and checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        batches.set_state(saved["loader"])
        losses = saved["losses"]
    loader.save(args.out / "loader.json")  # defines every batch, for `pairstream replay`

    signals: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: signals.append(number))
    for batch in batches:
        inputs = torch.cat([batch["frames"].flatten(1) / 255, batch["state"]], dim=1)
        actions, mask = batch["action"], batch["action_mask"].float()  # 0 beyond the end of the episode
        errors = torch.stack([model(inputs).view_as(actions) - actions, actions]).abs() * mask
        both_losses = errors.sum(dim=(1, 2, 3)) / mask.sum()
        optimizer.zero_grad()
        both_losses[0].backward()
        optimizer.step()
        losses.append(both_losses.tolist())
        if batches.step % args.every == 0 or batches.step == args.steps or signals:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
            torch.save({**state, "loader": batches.get_state()}, checkpoint.with_suffix(".tmp"))
            os.replace(checkpoint.with_suffix(".tmp"), checkpoint)  # the old checkpoint or the new, never a part
            print(REPORT.format(batches.step, *losses[-1], loader.stats()["wait_s"]), flush=True)
        if signals:
            sys.exit(130)


def main() -> None:
    """Record, convert, train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", help="a file, a folder or a glob; by default recordings are drawn")
    parser.add_argument("--out", type=Path, default=Path("runs/own"), help="for the root, loader.json and checkpoint")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint in --out, if there is one")
    for name, default in {"steps": 200, "every": 50}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"default: {default}")
    args = parser.parse_args()
    if not args.recordings:
        record(args.out / "recordings")
    source = ["--datasets", f"python:{__file__}:episodes", "--source", args.recordings or args.out / "recordings"]
    layout = ["--output", args.out / "root", "--layout", "frames", "--image-size", "native"]
    subprocess.run([sys.executable, "-m", "convert.run", *source, *layout], check=True)
    train(args, args.out / "root")


if __name__ == "__main__":
    main()
