"""Train a small latent-action model on frame pairs with PyTorch.

An encoder sees frames t and t + offset and says in a few numbers what happened between them; a decoder has to draw
frame t + offset from frame t and those numbers. Run it, interrupt it with Ctrl-C, and let it go on with --resume:

    python examples/train_torch.py --root build/demo/oxe --mixture oxe29 --steps 200 --out runs/demo

With several processes each reads and decodes its rows of the batch only, and they train one model. A run may go on with
another number of them:

    torchrun --nproc-per-node 2 examples/train_torch.py --root build/demo/oxe --steps 200 --out runs/demo
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel

from stream import StreamError
from stream.storage.errors import FormatError
from stream.torch import PairDataset, to_device

SIZE = 32
"""Frames are made this small, so that the model trains on a CPU."""


class LatentAction(nn.Module):
    """Draws frame t + offset from frame t and a latent action; frames are float32 [b, 3, SIZE, SIZE] in 0..1."""

    def __init__(self, latent: int = 16, width: int = 16) -> None:
        super().__init__()
        size = 2 * width * (SIZE // 4) ** 2

        def down(channels: int) -> nn.Module:
            one = nn.Conv2d(channels, width, 4, stride=2, padding=1)
            return nn.Sequential(one, nn.GELU(), nn.Conv2d(width, 2 * width, 4, stride=2, padding=1), nn.GELU())

        self.encoder = nn.Sequential(down(6), nn.Flatten(), nn.Linear(size, latent))
        self.spread = nn.Linear(latent, size)
        self.look = down(3)
        last = nn.ConvTranspose2d(width, 3, 4, stride=2, padding=1)
        for parameter in last.parameters():
            nn.init.zeros_(parameter)  # begins as the baseline, which says that nothing moves
        middle = nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1)
        self.draw = nn.Sequential(nn.Conv2d(4 * width, 2 * width, 3, padding=1), nn.GELU(), middle, nn.GELU(), last)

    def forward(self, first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """Return frame t + offset [b, 3, SIZE, SIZE]; all that is told of ``last`` are the latent's few numbers."""
        latent = self.encoder(torch.cat([first, last - first], dim=1))
        seen = self.look(first)
        return first + self.draw(torch.cat([seen, self.spread(latent).view_as(seen)], dim=1))


def shrink(frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first and the last frame of uint8 [b, F, H, W, 3] as float32 [b, 3, SIZE, SIZE] in 0..1."""
    stride = max(1, frames.shape[2] // (2 * SIZE))
    pair = frames[:, [0, -1], stride // 2 :: stride, stride // 2 :: stride].flatten(0, 1).permute(0, 3, 1, 2)
    pair = F.adaptive_avg_pool2d(pair.float() / 255, SIZE).unflatten(0, (-1, 2))
    return pair[:, 0], pair[:, 1]


def join() -> tuple[int, int]:
    """Join the processes that torchrun or srun started; return rank and number of processes."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return 0, 1
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group()  # NCCL for what lies on GPUs, gloo for what does not
    return dist.get_rank(), dist.get_world_size()


def summed(values: torch.Tensor) -> torch.Tensor:
    """Add up, in place, what all processes have."""
    if dist.is_initialized():
        dist.all_reduce(values)
    return values


def train(args: argparse.Namespace) -> int:
    """Train; return the exit code."""
    rank, world_size = join()
    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(True)
    settings = {"batch_size": args.batch_size, "seed": args.seed, "num_workers": args.num_workers}
    data = PairDataset(args.root, args.mixture, num_steps=args.steps, **settings)  # finds rank and world size itself
    model = LatentAction().to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    batches = to_device(data, args.device)
    checkpoint = args.out / "checkpoint.pt"
    losses: list[list[float]] = []
    recent: list[torch.Tensor] = []
    if args.resume:
        saved = torch.load(checkpoint, weights_only=True, map_location=args.device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        batches.set_state(saved["loader"])
        losses = saved["losses"]
        if rank == 0:
            print(f"going on at step {batches.step}")
    if rank == 0:
        data.loader.save(args.out / "loader.json")
    predict = DistributedDataParallel(model) if world_size > 1 else model

    def save() -> None:
        if recent:
            losses.extend((summed(torch.stack(recent)) / world_size).tolist())  # all have as many rows
            recent.clear()
        if rank > 0:
            return
        content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
        torch.save({**content, "loader": batches.get_state()}, checkpoint.with_suffix(".tmp"))
        os.replace(checkpoint.with_suffix(".tmp"), checkpoint)

    interrupted = stopping = False

    def interrupt(*_: object) -> None:
        nonlocal interrupted
        interrupted = True  # after this step; a second Ctrl-C stops at once
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, interrupt)
    began, begin_step = time.perf_counter(), batches.step
    for batch in batches:
        first, last = shrink(batch["frames"])
        loss = F.mse_loss(predict(first, last), last)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recent.append(torch.stack([loss.detach(), F.mse_loss(first, last)]))
        stopping = bool(summed(torch.tensor(int(interrupted))))  # all have to stop after the same step
        if batches.step % args.every == 0 or batches.step == args.steps or stopping:
            save()
            seconds, waited = time.perf_counter() - began, data.loader.stats()["wait_s"]
            speed = f"{(batches.step - begin_step) / seconds:.1f} steps/s, {waited / seconds:.0%} of the time waiting"
            if rank == 0:
                print(f"step {batches.step}: loss {losses[-1][0]:.5f}, {speed} for data", flush=True)
        if stopping:
            break
    if dist.is_initialized():
        dist.destroy_process_group()
    if stopping:
        if rank == 0:
            print(f"interrupted; saved to {checkpoint}, go on with --resume", file=sys.stderr)
        return 130
    if rank > 0:
        return 0
    tenth = max(1, len(losses) // 10)
    for name, part in (("first", losses[:tenth]), ("last", losses[-tenth:])):
        loss, still = (sum(column) / len(part) for column in zip(*part, strict=True))
        print(f"{name} {len(part)} steps: loss {loss:.5f}, that of predicting frame t {still:.5f}")
    return 0


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("build/demo/oxe"), help="what convert.run wrote")
    parser.add_argument("--mixture", default="oxe29", help="a mixture, a dataset, or a YAML file")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--num-workers", type=int, default=2, help="processes that decode")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="for loader.json and checkpoints")
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    args = parser.parse_args()
    try:
        sys.exit(train(args))
    except (StreamError, FormatError, FileNotFoundError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
