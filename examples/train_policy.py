"""Train a small policy with PyTorch: two cameras, history, state and instruction in, a chunk of eight actions out.

It needs a root of the layout `frames` (`convert.run --layout frames --cameras all`). Datasets without a wrist camera
have zeros and a mask there; actions beyond the end of an episode are masked. After Ctrl-C, --resume continues exactly:

    python examples/train_policy.py --root build/demo/frames --mixture oxe29 --steps 200 --out runs/policy
"""

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from torch import nn

import pairstream as ps

HISTORY, CHUNK, SIZE, WIDTH, WORDS = (-1, 0), 8, 32, 64, 1024  # frames, actions, height and width, features, vocabulary
REPORT = "step {}: loss {:.5f}, that of predicting the mean action {:.5f}, {:.1f} s waited for data"


class Policy(nn.Module):
    """Predictor of a chunk of normalised actions.

    Args:
        cameras: Cameras, as the keys of a batch name them.
        actions: Dimensions of the largest action, A.
        states: Dimensions of the largest state, S.
    """

    def __init__(self, cameras: list[str], actions: int, states: int) -> None:
        super().__init__()
        self.look = nn.ModuleDict()
        for camera in cameras:
            down = [nn.Conv2d(3, 16, 4, 2, 1), nn.GELU(), nn.Conv2d(16, 32, 4, 2, 1), nn.GELU(), nn.Flatten()]
            self.look[camera] = nn.Sequential(*down, nn.Linear(32 * (SIZE // 4) ** 2, WIDTH))
        self.read = nn.EmbeddingBag(WORDS, WIDTH, mode="mean", padding_idx=0)
        self.feel = nn.Linear(2 * states, WIDTH)
        num_inputs = (len(cameras) * len(HISTORY) + 2) * WIDTH
        self.act = nn.Sequential(nn.Linear(num_inputs, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, CHUNK * actions))

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        """Return the loss, and that of predicting the mean action, float [2]."""
        state, actions, mask = batch["state"], batch["action"], batch["action_mask"].float()
        features = [self.feel(torch.cat([state, batch["state_mask"].float()], dim=1))]
        for camera, look in self.look.items():
            frames = batch[f"frames/{camera}"].permute(0, 1, 4, 2, 3).float() / 255  # from uint8 [b, F, SIZE, SIZE, 3]
            camera_features = look(frames.flatten(0, 1)).unflatten(0, frames.shape[:2])
            features.append((camera_features * batch[f"frames_mask/{camera}"][:, :, None]).flatten(1))
        words = [
            torch.tensor([1 + crc32(word.encode()) % (WORDS - 1) for word in text.lower().split()] or [0])
            for text in batch["language"]
        ]
        features.append(self.read(nn.utils.rnn.pad_sequence(words, batch_first=True).to(state.device)))
        chunk = self.act(torch.cat(features, dim=1)).view_as(actions)
        errors = torch.stack([(chunk - actions).abs() * mask, actions.abs() * mask])
        return errors.sum(dim=(1, 2, 3)) / mask.sum()


def main() -> None:
    """Train; end with exit code 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="build/demo/frames", help="converted root, also s3://... and others")
    parser.add_argument("--cache", metavar="DIR:SIZE", help="local folder for the parts read of a remote root")
    parser.add_argument("--mixture", default="oxe29", help="a mixture, a dataset, or a YAML file")
    parser.add_argument("--cameras", default="primary,wrist", help="by role or name, with commas between")
    parser.add_argument("--out", type=Path, default=Path("runs/policy"), help="for loader.json and the checkpoint")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint in --out, if there is one")
    for name, default in {"steps": 200, "every": 50, "batch-size": 16, "num-workers": 2, "seed": 0, "lr": 1e-3}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"default: {default}")
    args = parser.parse_args()

    device, cameras = "cuda" if torch.cuda.is_available() else "cpu", args.cameras.split(",")
    torch.manual_seed(args.seed)
    settings = {name: getattr(args, name) for name in ("batch_size", "num_workers", "seed", "cache")}
    frames = ps.Frames(HISTORY, cameras=cameras, size=(SIZE, SIZE), edges="repeat")
    settings |= {"frames": frames, "action": CHUNK, "normalize": "mean_std"}
    loader = ps.make_loader(args.root, args.mixture, num_steps=args.steps, **settings)
    batches = ps.torch.to_device(loader, device)
    num_actions, num_states = (max(map(len, names.values())) for names in (loader.action_names, loader.state_names))
    model = Policy(cameras, num_actions, num_states).to(device)
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
