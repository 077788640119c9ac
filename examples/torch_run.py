"""The training run that the PyTorch examples share: arguments, several processes, checkpoints, Ctrl-C, waiting."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stream import StreamError, make_loader
from stream.torch import ranks, to_device


def parse(description: str, *, root: str, out: str, cameras: str = "", **defaults: Any) -> argparse.Namespace:
    """Return the arguments of an example, with ``--cameras`` if it has several; ``defaults`` replace the defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(root), help="converted root, also s3://... and others")
    parser.add_argument("--cache", metavar="DIR:SIZE", help="local folder for the parts read of a remote root")
    parser.add_argument("--mixture", default="oxe29", help="a mixture, a dataset, or a YAML file")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--num-workers", type=int, default=2, help="processes that decode")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path(out), help="for loader.json and checkpoints")
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument(
        "--resume",
        nargs="?",
        const="required",
        choices=("required", "auto"),
        help="continue from the checkpoint in --out; with auto, if there is one",
    )
    if cameras:
        parser.add_argument("--cameras", default=cameras, help="by role or name, with commas between")
    parser.set_defaults(**defaults)
    return parser.parse_args()


def run(args: argparse.Namespace, make: Callable[[], tuple[nn.Module, dict[str, Any]]], *, baseline: str) -> None:
    """Train, and end the program with its exit code; an error is one line.

    Args:
        args: Result of ``parse``.
        make: Returns the model and further arguments of ``make_loader``. The model takes a batch on the device and
            returns its loss and the baseline's, float [2].
        baseline: Name of the baseline.
    """
    try:
        sys.exit(_train(args, make, baseline))
    except (StreamError, FileNotFoundError) as error:
        sys.exit(f"error: {error}")


def _join() -> None:
    """Join the processes that torchrun started, if it did."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group()  # NCCL for tensors on GPUs, gloo for others


def _summed(values: torch.Tensor) -> torch.Tensor:
    """Add up the values of all processes in place."""
    if dist.is_initialized():
        dist.all_reduce(values)
    return values


def _train(args: argparse.Namespace, make: Callable[[], tuple[nn.Module, dict[str, Any]]], baseline: str) -> int:
    _join()
    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(True)
    model, loader_arguments = make()
    shared = ("batch_size", "seed", "num_workers", "cache")
    loader_arguments |= {name: getattr(args, name) for name in shared}
    loader = make_loader(args.root, args.mixture, num_steps=args.steps, **loader_arguments, **ranks())
    rank, world_size = loader.rank, loader.world_size
    model = model.to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    batches = to_device(loader, args.device)
    checkpoint = args.out / "checkpoint.pt"
    losses: list[list[float]] = []
    recent: list[torch.Tensor] = []
    if args.resume == "required" or (args.resume == "auto" and checkpoint.exists()):
        checkpoint_state = torch.load(checkpoint, weights_only=True, map_location=args.device)
        model.load_state_dict(checkpoint_state["model"])
        optimizer.load_state_dict(checkpoint_state["optimizer"])
        batches.set_state(checkpoint_state["loader"])
        losses = checkpoint_state["losses"]
        if rank == 0:
            print(f"continuing at step {batches.step}")
    if rank == 0:
        loader.save(args.out / "loader.json")
    parallel = DistributedDataParallel(model) if world_size > 1 else model

    def save() -> None:
        if recent:
            losses.extend((_summed(torch.stack(recent)) / world_size).tolist())  # all ranks have the same count of rows
            recent.clear()
        if rank > 0:
            return
        training_state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
        torch.save({**training_state, "loader": batches.get_state()}, checkpoint.with_suffix(".tmp"))
        os.replace(checkpoint.with_suffix(".tmp"), checkpoint)

    interrupted = stopping = False

    def interrupt(*_: object) -> None:
        nonlocal interrupted
        interrupted = True  # after this step; a second Ctrl-C stops at once
        signal.signal(signal.SIGINT, signal.default_int_handler)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):  # Ctrl-C, Slurm's preemption and its time limit
        signal.signal(number, interrupt)
    start_time, start_step = time.perf_counter(), batches.step
    for batch in batches:
        both_losses = parallel(batch)
        optimizer.zero_grad()
        both_losses[0].backward()
        optimizer.step()
        recent.append(both_losses.detach())
        stopping = bool(_summed(torch.tensor(int(interrupted))))  # all ranks stop after the same step
        if batches.step % args.every == 0 or batches.step == args.steps or stopping:
            save()
            seconds = time.perf_counter() - start_time
            speed, waiting = (batches.step - start_step) / seconds, loader.stats()["wait_s"] / seconds
            if rank == 0:
                progress = f"loss {losses[-1][0]:.5f}, {speed:.1f} steps/s, {waiting:.0%} of the time waiting for data"
                print(f"step {batches.step}: {progress}", flush=True)
        if stopping:
            break
    if dist.is_initialized():
        dist.destroy_process_group()
    if stopping:
        if rank == 0:
            print(f"interrupted; saved to {checkpoint}, continue with --resume", file=sys.stderr)
        return 130
    if rank > 0:
        return 0
    tenth = max(1, len(losses) // 10)
    for part_name, part_losses in (("first", losses[:tenth]), ("last", losses[-tenth:])):
        loss, baseline_loss = (sum(column) / len(part_losses) for column in zip(*part_losses, strict=True))
        print(f"{part_name} {len(part_losses)} steps: loss {loss:.5f}, that of {baseline} {baseline_loss:.5f}")
    return 0
