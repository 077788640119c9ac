"""Train a small policy: two cameras, two steps of history, state and instruction in; a chunk of eight actions out.

The cameras come from a root with the layout `frames` (`convert.run --layout frames --cameras all`). Datasets without a
wrist camera have zeros and a mask there; actions beyond the end of an episode are masked out of the loss:

    python examples/train_policy.py --root build/demo/frames --mixture oxe29 --steps 200 --out runs/policy
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import torch
from latent_action import SIZE, down, shrink  # type: ignore[import-not-found]
from torch import nn
from torch_run import parse, run  # type: ignore[import-not-found]

from stream import Frames, Normalize, make_loader

HISTORY, CHUNK, WORDS = (-1, 0), 8, 1024


class Policy(nn.Module):
    """Predicts a chunk of normalised actions.

    Args:
        cameras: Cameras, as the keys of a batch name them.
        actions: Dimensions of the largest action, A.
        states: Dimensions of the largest state, S.
    """

    def __init__(self, cameras: Sequence[str], actions: int, states: int, width: int = 64) -> None:
        super().__init__()
        features = 32 * (SIZE // 4) ** 2
        self.look = nn.ModuleDict(
            {camera: nn.Sequential(down(3), nn.Flatten(), nn.Linear(features, width)) for camera in cameras}
        )
        self.read = nn.EmbeddingBag(WORDS, width, mode="mean")
        self.feel = nn.Linear(2 * states, width)
        inputs = (len(cameras) * len(HISTORY) + 2) * width
        self.act = nn.Sequential(nn.Linear(inputs, 4 * width), nn.GELU(), nn.Linear(4 * width, CHUNK * actions))

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        """Return the loss of a batch, and that of predicting the mean action, float [2]."""
        features_list = []
        for camera, look in self.look.items():
            features = look(shrink(batch[f"frames/{camera}"]).flatten(0, 1)).unflatten(0, (-1, len(HISTORY)))
            features_list.append((features * batch[f"frames_mask/{camera}"][:, :, None]).flatten(1))
        features_list.append(self.read(*_words(batch["language"], batch["state"].device)))
        features_list.append(self.feel(torch.cat([batch["state"], batch["state_mask"].float()], dim=1)))
        actions, mask = batch["action"], batch["action_mask"].float()
        chunk = self.act(torch.cat(features_list, dim=1)).view_as(actions)
        absolute_errors = torch.stack([(chunk - actions).abs() * mask, actions.abs() * mask])
        return absolute_errors.sum(dim=(1, 2, 3)) / mask.sum()


def _words(instructions: list[str], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the words of all texts as numbers, int64 [n], and the first of each text, int64 [b]."""
    words = [
        [crc32(word.encode()) % WORDS for word in instruction.lower().split()] or [0] for instruction in instructions
    ]
    first_words = torch.tensor([0, *map(len, words[:-1])]).cumsum(0)
    return torch.tensor([number for instruction in words for number in instruction], device=device), first_words.to(
        device
    )


if __name__ == "__main__":
    args = parse(
        __doc__ or "", root="build/demo/frames", out="runs/policy", cameras="primary,wrist", batch_size=16, lr=1e-3
    )

    def make() -> tuple[nn.Module, dict[str, Any]]:
        """Return the model, and the windows that it is trained on."""
        cameras = args.cameras.split(",")
        settings: dict[str, Any] = {"frames": Frames(HISTORY, cameras=cameras, edges="repeat"), "action": CHUNK}
        loader = make_loader(args.root, args.mixture, batch_size=args.batch_size, cache=args.cache, **settings)
        sizes = (max(map(len, names.values())) for names in (loader.action_names, loader.state_names))
        return Policy(cameras, *sizes), settings | {"transforms": [Normalize(loader)]}

    run(args, make, baseline="predicting the mean action")
