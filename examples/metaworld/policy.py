"""A small policy: a picture, the state and an instruction in, a chunk of eight normalised actions out.

Four convolutions, the expected position of each of their 32 features (a spatial softmax), the words of the instruction,
and three linear layers: 0.1 million weights. It needs torch only, so other loaders train the same policy.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from zlib import crc32

import torch
from torch import nn

CHUNK, WORDS, WIDTH = 8, 256, 256


class Policy(nn.Module):
    """Predicts a chunk of actions, float32 [b, CHUNK, 4], normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Sequential(
            *(nn.Conv2d(3, 16, 5, stride=2, padding=2), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()),
            *(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()),
            nn.Conv2d(32, 32, 3, padding=1),
        )
        self.read = nn.EmbeddingBag(WORDS, 32, mode="sum")
        self.act = nn.Sequential(
            *(nn.Linear(64 + 32 + 4, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU()),
            nn.Linear(WIDTH, CHUNK * 4),
        )

    def forward(self, pictures: torch.Tensor, states: torch.Tensor, instructions: list[str]) -> torch.Tensor:
        """Return the chunks of some observations.

        Args:
            pictures: uint8 [b, h, w, 3].
            states: Normalised, float32 [b, 4].
            instructions: b texts.
        """
        features = self.look(pictures.permute(0, 3, 1, 2).float() / 127.5 - 1)
        weights = features.flatten(2).softmax(2).view_as(features)
        rows = torch.linspace(-1, 1, features.shape[2])
        columns = torch.linspace(-1, 1, features.shape[3])
        points = torch.cat([weights.sum(3) @ rows, weights.sum(2) @ columns], dim=1)
        words = [[crc32(word.encode()) % WORDS for word in text.lower().split()] for text in instructions]
        starts = torch.tensor([0, *map(len, words[:-1])]).cumsum(0)
        numbers = torch.tensor([number for text in words for number in text])
        inputs = torch.cat([points, self.read(numbers, starts), states], dim=1)
        return self.act(inputs).unflatten(1, (CHUNK, 4))


Sample = tuple[torch.Tensor, torch.Tensor, list[str], torch.Tensor, torch.Tensor]
"""Pictures, states, instructions, actions float32 [b, CHUNK, 4], and which of them count, bool [b, CHUNK, 4]."""


def fit(samples: Iterable[Sample], *, steps: int, seed: int, every: int = 500) -> Policy:
    """Train a policy on batches, and print its loss and the share of time waiting for data.

    Args:
        samples: At least ``steps`` batches.
        steps: Steps of AdamW, with a learning rate that falls to zero along a cosine.
        seed: Seed of the weights.
        every: Steps between two lines of the log.
    """
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    policy = Policy()
    optimizer = torch.optim.AdamW(policy.parameters(), weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=steps, pct_start=0.05)
    losses, waited, start = [], 0.0, time.monotonic()
    iterator = iter(samples)
    for step in range(1, steps + 1):
        asked = time.monotonic()
        pictures, states, instructions, actions, mask = next(iterator)
        waited += time.monotonic() - asked
        errors = (policy(pictures, states, instructions) - actions).abs() * mask
        loss = errors.sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % every == 0 or step == steps:
            seconds = time.monotonic() - start
            mean = sum(losses[-every:]) / len(losses[-every:])
            print(f"step {step}: loss {mean:.4f}, {seconds:.0f} s, {waited / seconds:.0%} of it waiting", flush=True)
    return policy
