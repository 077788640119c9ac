"""A small latent-action model: it describes in a few numbers what happened between two frames."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

SIZE = 32
"""Frames are resized to this size, so that the model trains on a CPU."""


def down(channels: int, width: int = 16) -> nn.Module:
    """Return a network from [b, channels, SIZE, SIZE] to [b, 2 * width, SIZE / 4, SIZE / 4]."""
    first_layer = nn.Conv2d(channels, width, 4, stride=2, padding=1)
    return nn.Sequential(first_layer, nn.GELU(), nn.Conv2d(width, 2 * width, 4, stride=2, padding=1), nn.GELU())


def up(channels: int, width: int = 16) -> nn.Module:
    """Return the network back to [b, 3, SIZE, SIZE]; its first output is 0, as if nothing moved."""
    last_layer = nn.ConvTranspose2d(width, 3, 4, stride=2, padding=1)
    for parameter in last_layer.parameters():
        nn.init.zeros_(parameter)
    middle_layer = nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1)
    return nn.Sequential(nn.Conv2d(channels, 2 * width, 3, padding=1), nn.GELU(), middle_layer, nn.GELU(), last_layer)


def shrink(frames: torch.Tensor) -> torch.Tensor:
    """Return frames uint8 [b, F, H, W, 3] as float32 [b, F, 3, SIZE, SIZE] in 0..1."""
    stride = max(1, frames.shape[2] // (2 * SIZE))
    small = frames[:, :, stride // 2 :: stride, stride // 2 :: stride].flatten(0, 1).permute(0, 3, 1, 2)
    return F.adaptive_avg_pool2d(small.float() / 255, SIZE).unflatten(0, frames.shape[:2])


class LatentAction(nn.Module):
    """Draws frame t + offset from frame t and a latent action; frames are float32 [b, 3, SIZE, SIZE] in 0..1."""

    def __init__(self, latent: int = 16, width: int = 16) -> None:
        super().__init__()
        flat_size = 2 * width * (SIZE // 4) ** 2
        self.encoder = nn.Sequential(down(6, width), nn.Flatten(), nn.Linear(flat_size, latent))
        self.spread = nn.Linear(latent, flat_size)
        self.look = down(3, width)
        self.draw = up(4 * width, width)

    def predict(self, first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """Return frame t + offset [b, 3, SIZE, SIZE], from frame t and the few numbers of the latent."""
        latent = self.encoder(torch.cat([first, last - first], dim=1))
        features = self.look(first)
        return first + self.draw(torch.cat([features, self.spread(latent).view_as(features)], dim=1))

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        """Return the loss of a batch, and that of predicting frame t, float [2]."""
        small = shrink(batch["frames"][:, [0, -1]])
        first, last = small[:, 0], small[:, 1]
        return torch.stack([F.mse_loss(self.predict(first, last), last), F.mse_loss(first, last)])
