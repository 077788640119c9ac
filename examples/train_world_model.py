"""Train a small world model: draw the next frame from a frame of a clip and its action.

A clip has 8 frames, STRIDE steps apart, and the actions between them. It is loaded from a root with the layout
`frames`, which serves any window of frames:

    python examples/train_world_model.py --root build/demo/frames --mixture oxe29 --steps 200 --out runs/world_model
"""

from __future__ import annotations

from typing import Any

import torch
from latent_action import SIZE, down, shrink, up  # type: ignore[import-not-found]
from torch import nn
from torch_run import parse, run  # type: ignore[import-not-found]

from stream import Normalize, Vector, make_loader

FRAMES, STRIDE = 8, 1


class WorldModel(nn.Module):
    """Draws the next frame from a frame and an action.

    Args:
        actions: Dimensions of the largest action, A.
    """

    def __init__(self, actions: int, width: int = 16) -> None:
        super().__init__()
        self.look = down(3, width)
        # Values and mask, as robots differ in their dimensions.
        self.act = nn.Linear(2 * STRIDE * actions, 2 * width * (SIZE // 4) ** 2)
        self.draw = up(4 * width, width)

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        """Return the loss of a batch of clips, and that of predicting that nothing moves, float [2]."""
        clip = shrink(batch["frames"])
        frames, next_frames = clip[:, :-1].flatten(0, 1), clip[:, 1:].flatten(0, 1)
        actions = torch.cat([batch["action"], batch["action_mask"].float()], dim=-1)
        actions = actions.flatten(2).flatten(0, 1)
        features = self.look(frames)
        drawn_frames = frames + self.draw(torch.cat([features, self.act(actions).view_as(features)], dim=1))
        mask = batch["frames_mask"][:, 1:].flatten().float()
        squared_errors = torch.stack([(drawn_frames - next_frames).square(), (frames - next_frames).square()]).mean(
            dim=(2, 3, 4)
        )
        return (squared_errors * mask).sum(dim=1) / mask.sum().clamp(min=1)


if __name__ == "__main__":
    args = parse(__doc__ or "", root="build/demo/frames", out="runs/world_model", batch_size=16)

    def make() -> tuple[nn.Module, dict[str, Any]]:
        """Return the model, and the clips that it is trained on."""
        frames = [STRIDE * frame for frame in range(FRAMES)]
        settings: dict[str, Any] = {"frames": frames, "action": Vector(between="frames")}
        loader = make_loader(args.root, args.mixture, batch_size=args.batch_size, cache=args.cache, **settings)
        model = WorldModel(max(map(len, loader.action_names.values())))
        return model, settings | {"transforms": [Normalize(loader)]}

    run(args, make, baseline="predicting that nothing moves")
