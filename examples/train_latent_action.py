"""Train a small latent-action model on frame pairs with PyTorch, in one process or many.

An encoder turns frames t and t + offset into a few numbers; a decoder draws frame t + offset from frame t and these
numbers. After Ctrl-C, --resume continues exactly, with any number of processes, each of which decodes only its rows:

    python examples/train_latent_action.py --root build/demo/oxe --mixture oxe29 --steps 200 --out runs/demo
    torchrun --nproc-per-node 2 examples/train_latent_action.py --root build/demo/oxe --resume --out runs/demo

SIGTERM and SIGUSR1, by which Slurm ends a job, do the same as Ctrl-C: examples/slurm/train.sbatch then continues.
"""

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel

import pairstream as ps

SIZE, WIDTH, LATENT = 32, 16, 16  # height and width of frames for the model, its channels, numbers of a latent action
REPORT = "step {}: loss {:.5f}, that of predicting frame t {:.5f}, {:.1f} s waited for data"


def down(channels: int) -> list[nn.Module]:
    """Return layers from [b, channels, SIZE, SIZE] to [b, 2 * WIDTH, SIZE / 4, SIZE / 4]."""
    return [nn.Conv2d(channels, WIDTH, 4, 2, 1), nn.GELU(), nn.Conv2d(WIDTH, 2 * WIDTH, 4, 2, 1), nn.GELU()]


class LatentAction(nn.Module):
    """Encoder of two frames to a latent action, and decoder of the second frame from the first and the latent."""

    def __init__(self) -> None:
        super().__init__()
        num_features = 2 * WIDTH * (SIZE // 4) ** 2
        self.encode = nn.Sequential(*down(6), nn.Flatten(), nn.Linear(num_features, LATENT))
        self.look, self.spread = nn.Sequential(*down(3)), nn.Linear(LATENT, num_features)
        self.mix = nn.Sequential(nn.Conv2d(4 * WIDTH, 2 * WIDTH, 3, padding=1), nn.GELU())
        self.up, self.draw = nn.ConvTranspose2d(2 * WIDTH, WIDTH, 4, 2, 1), nn.ConvTranspose2d(WIDTH, 3, 4, 2, 1)
        for parameter in self.draw.parameters():
            nn.init.zeros_(parameter)  # starts as the baseline: nothing moves

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        """Return the loss, and that of predicting frame t, float [2], from frames uint8 [b, F, H, W, 3]."""
        stride = max(1, batch["frames"].shape[2] // (2 * SIZE))  # most pixels are left out before they become floats
        pair = batch["frames"][:, [0, -1], stride // 2 :: stride, stride // 2 :: stride].flatten(0, 1)
        pair = F.adaptive_avg_pool2d(pair.permute(0, 3, 1, 2).float() / 255, SIZE)
        first, last = pair.unflatten(0, (-1, 2)).unbind(1)
        features = self.look(first)
        latent = self.spread(self.encode(torch.cat([first, last - first], dim=1))).view_as(features)
        predicted = first + self.draw(F.gelu(self.up(self.mix(torch.cat([features, latent], dim=1)))))
        return torch.stack([F.mse_loss(predicted, last), F.mse_loss(first, last)])


def main() -> None:
    """Train; end with exit code 130 after a signal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="build/demo/oxe", help="converted root, also s3://... and others")
    parser.add_argument("--cache", metavar="DIR:SIZE", help="local folder for the parts read of a remote root")
    parser.add_argument("--mixture", default="oxe29", help="a mixture, a dataset, or a YAML file")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="for loader.json and the checkpoint")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint in --out, if there is one")
    for name, default in {"steps": 200, "every": 50, "batch-size": 32, "num-workers": 2, "seed": 0, "lr": 2e-3}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"default: {default}")
    args = parser.parse_args()
    device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    alone: dict[str, Any] = {"store": dist.HashStore(), "rank": 0, "world_size": 1}  # type: ignore[attr-defined]
    dist.init_process_group(**{} if "WORLD_SIZE" in os.environ else alone)  # torchrun and train.sbatch set it
    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(True)
    settings = {name: getattr(args, name) for name in ("batch_size", "num_workers", "seed", "cache")}
    loader = ps.make_loader(args.root, args.mixture, num_steps=args.steps, **settings, **ps.torch.ranks())
    batches = ps.torch.to_device(loader, device)
    model = DistributedDataParallel(LatentAction().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    checkpoint, losses, recent = args.out / "checkpoint.pt", [], []
    if args.resume and checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        batches.set_state(saved["loader"])
        losses = saved["losses"]
    if loader.rank == 0:
        loader.save(args.out / "loader.json")
        print(f"starts at step {batches.step}; Ctrl-C saves a checkpoint, --resume continues", file=sys.stderr)
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):  # Ctrl-C, Slurm's preemption and its time limit
        signal.signal(number, lambda received, _: signals.append(received))
    for batch in batches:
        both_losses = model(batch)
        optimizer.zero_grad()
        both_losses[0].backward()
        optimizer.step()
        recent.append(both_losses.detach())
        dist.all_reduce(is_stopping := torch.tensor(len(signals), device=device))  # all ranks stop after one step
        if batches.step % args.every == 0 or batches.step == args.steps or is_stopping:
            dist.all_reduce(mean_losses := torch.stack(recent) / loader.world_size)
            losses, recent = losses + mean_losses.tolist(), []
            if loader.rank == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
                torch.save({**state, "loader": batches.get_state()}, checkpoint.with_suffix(".tmp"))
                os.replace(checkpoint.with_suffix(".tmp"), checkpoint)  # the old checkpoint or the new, never a part
                print(REPORT.format(batches.step, *losses[-1], loader.stats()["wait_s"]), flush=True)
        if is_stopping:
            dist.destroy_process_group()
            sys.exit(130)
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except ps.StreamError as error:
        sys.exit(f"error: {error}")
