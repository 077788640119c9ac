"""Train a small world model with PyTorch: draw the next frame of a clip from a frame and its action.

A clip has 8 successive frames and the actions between them. It needs a root of the layout `frames`, which serves any
window of frames. After Ctrl-C, --resume continues exactly:

    python examples/train_world_model.py --root build/demo/frames --mixture oxe29 --steps 200 --out runs/world_model
"""

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

import pairstream as ps

FRAMES, SIZE, WIDTH = 8, 32, 16  # frames of a clip, their height and width, channels of the model
REPORT = "step {}: loss {:.5f}, that of predicting that nothing moves {:.5f}, {:.1f} s waited for data"


class WorldModel(nn.Module):
    """Drawer of the next frame, from a frame and an action of up to ``num_actions`` numbers."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        down = [nn.Conv2d(3, WIDTH, 4, 2, 1), nn.GELU(), nn.Conv2d(WIDTH, 2 * WIDTH, 4, 2, 1), nn.GELU()]
        self.look = nn.Sequential(*down)
        # Values and mask, as robots differ in their dimensions.
        self.act = nn.Linear(2 * num_actions, 2 * WIDTH * (SIZE // 4) ** 2)
        self.mix = nn.Sequential(nn.Conv2d(4 * WIDTH, 2 * WIDTH, 3, padding=1), nn.GELU())
        self.up, self.draw = nn.ConvTranspose2d(2 * WIDTH, WIDTH, 4, 2, 1), nn.ConvTranspose2d(WIDTH, 3, 4, 2, 1)
        for parameter in self.draw.parameters():
            nn.init.zeros_(parameter)  # starts as the baseline: nothing moves

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        """Return the loss, and that of predicting that nothing moves, float [2].

        Args:
            batch: ``frames`` uint8 [b, F, SIZE, SIZE, 3] and ``action`` float32 [b, F - 1, 1, A], with their masks.
        """
        clip = batch["frames"].permute(0, 1, 4, 2, 3).float() / 255
        frames, next_frames = clip[:, :-1].flatten(0, 1), clip[:, 1:].flatten(0, 1)
        actions = torch.cat([batch["action"], batch["action_mask"].float()], dim=-1).flatten(2).flatten(0, 1)
        features = self.look(frames)
        features = torch.cat([features, self.act(actions).view_as(features)], dim=1)
        predicted = frames + self.draw(nn.functional.gelu(self.up(self.mix(features))))
        errors = torch.stack([predicted - next_frames, frames - next_frames]).square().mean(dim=(2, 3, 4))
        mask = batch["frames_mask"][:, 1:].flatten().float()  # False for frames that a dataset lacks
        return (errors * mask).sum(dim=1) / mask.sum().clamp(min=1)


def main() -> None:
    """Train; end with exit code 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="build/demo/frames", help="converted root, also s3://... and others")
    parser.add_argument("--cache", metavar="DIR:SIZE", help="local folder for the parts read of a remote root")
    parser.add_argument("--mixture", default="oxe29", help="a mixture, a dataset, or a YAML file")
    parser.add_argument("--out", type=Path, default=Path("runs/world_model"), help="for loader.json and the checkpoint")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint in --out, if there is one")
    for name, default in {"steps": 200, "every": 50, "batch-size": 16, "num-workers": 2, "seed": 0, "lr": 2e-3}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"default: {default}")
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    loader = ps.make_loader(
        args.root,
        args.mixture,
        batch_size=args.batch_size,
        num_steps=args.steps,
        frames=ps.Frames(range(FRAMES), size=(SIZE, SIZE)),
        action=ps.Vector(between="frames"),
        normalize="mean_std",
        num_workers=args.num_workers,
        seed=args.seed,
        cache=args.cache,
    )
    batches = ps.torch.to_device(loader, device)
    model = WorldModel(max(map(len, loader.action_names.values()))).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    checkpoint, losses = args.out / "checkpoint.pt", []
    if args.resume and checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        batches.set_state(saved["loader"])
        losses = saved["losses"]
    loader.save(args.out / "loader.json")  # defines every batch, for `pairstream replay`
    print(f"starts at step {batches.step}; Ctrl-C saves a checkpoint, --resume continues", file=sys.stderr)

    signals: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: signals.append(number))
    for batch in batches:
        both_losses = model(batch)
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


if __name__ == "__main__":
    try:
        main()
    except ps.StreamError as error:
        sys.exit(f"error: {error}")
