"""Augmentation of frames with PyTorch, on a device, by the formulas of the host."""

from __future__ import annotations

import numpy as np

from stream.base.extras import imports_of
from stream.batch.pictures.augmentation import Amounts, Augmentation
from stream.batch.pictures.colours import LUMA, Pixels, augment_pixels, source_indices
from stream.batch.spec import BatchSpec
from stream.frameworks.device_augment import MOST_PIXELS, DeviceAugmenter

with imports_of("torch", by="stream.torch"):
    import torch
    import torch.nn.functional


class TorchPixels(Pixels):
    """Operations on several frames, float32 [n, H, W, 3]."""

    xp = torch
    turn = 1.0

    def clip(self, frames: torch.Tensor) -> torch.Tensor:
        """Return the frames limited to [0, 1]."""
        return frames.clip(0, 1)

    def scale(self, frames: torch.Tensor, factor: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """Return the frames times a factor plus a shift."""
        return frames * factor + shift

    def scale_about_means(self, frames: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """Return the frames with other distances from the mean of each channel."""
        return torch.lerp(frames.mean(dim=(1, 2), keepdim=True), frames, factor)

    def scale_about_grey_mean(self, frames: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """Return the frames with other distances from the mean of the grey."""
        return torch.lerp(_grey(frames.mean(dim=(1, 2), keepdim=True)), frames, factor)

    def scale_about_grey(self, frames: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """Return the frames with other distances of each pixel from its grey."""
        return torch.lerp(_grey(frames), frames, factor)

    def blend_with_blur(self, frames: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """Return the frames with other distances of each pixel from the blur."""
        if min(frames.shape[1:3]) < 3:
            return frames
        kernel = frames.new_ones((3, 1, 3, 3)) / 13
        kernel[:, :, 1, 1] = 5 / 13
        blurred = frames.clone()
        inner = torch.nn.functional.conv2d(frames.permute(0, 3, 1, 2), kernel, groups=3)
        blurred[:, 1:-1, 1:-1] = inner.permute(0, 2, 3, 1)
        return torch.lerp(blurred, frames, factor)

    def split(self, frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return hue in turns, saturation and value, [n, H, W, 1] each."""
        value, brightest = frames.max(dim=-1, keepdim=True)
        chroma = value - frames.amin(dim=-1, keepdim=True)
        next_channel = frames.gather(-1, (brightest + 1) % 3)
        last_channel = frames.gather(-1, (brightest + 2) % 3)
        # Grey has no hue and black no saturation; 1 avoids their divisions by 0.
        hue = (2 * brightest + (next_channel - last_channel) / torch.where(chroma > 0, chroma, 1.0)) / 6
        return hue, chroma / torch.where(value > 0, value, 1.0), value

    def merge(self, hue: torch.Tensor, saturation: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return the frames of a hue, saturation and value."""
        sector = torch.remainder(hue * 6 + hue.new_tensor([5.0, 3.0, 1.0]), 6)
        return value - value * saturation * torch.minimum(sector, 4 - sector).clip(0, 1)

    def warp(self, frames: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
        """Return the frames resampled, black beyond their edge; matrices float64 [n, 2, 3]."""
        height, width = frames.shape[1:3]
        columns = torch.arange(width, device=frames.device, dtype=torch.float64)
        rows = torch.arange(height, device=frames.device, dtype=torch.float64)[:, None]
        positions = [
            matrix_row[:, 0, None, None] * columns + matrix_row[:, 1, None, None] * rows + matrix_row[:, 2, None, None]
            for matrix_row in matrices.unbind(1)
        ]
        # From -1 at the centre of the first pixel to 1 at that of the last.
        grid = torch.stack(
            [2 * position / max(size - 1, 1) - 1 for position, size in zip(positions, (width, height), strict=True)], -1
        )
        moved = torch.nn.functional.grid_sample(
            frames.permute(0, 3, 1, 2), grid.float(), mode="bilinear", padding_mode="zeros", align_corners=True
        )
        return moved.permute(0, 2, 3, 1)


def _grey(frames: torch.Tensor) -> torch.Tensor:
    """Return torchvision's grey, [n, H, W, 1]."""
    return (frames * frames.new_tensor(LUMA)).sum(dim=-1, keepdim=True)


class TorchAugmenter(DeviceAugmenter):
    """Augmenter of batches of tensors."""

    def __init__(self, spec: BatchSpec, augmentation: Augmentation) -> None:
        super().__init__(spec, augmentation)
        self._pixels = TorchPixels()

    def augment(self, frames: torch.Tensor, amounts: Amounts) -> torch.Tensor:
        """Return augmented frames, uint8 [b, F, H, W, 3]; black frames stay black."""
        num_rows = max(1, MOST_PIXELS // (frames[0].numel() // 3))
        parts = []
        for first in range(0, len(frames), num_rows):
            rows = slice(first, first + num_rows)
            matrices = None if amounts.matrices is None else amounts.matrices[rows]
            colours = {name: values[rows] for name, values in amounts.colours.items()}
            parts.append(self._augmented_rows(frames[rows], Amounts(matrices, colours)))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _augmented_rows(self, frames: torch.Tensor, amounts: Amounts) -> torch.Tensor:
        num_frames = frames.shape[1]

        def by_frame(values: np.ndarray) -> torch.Tensor:
            tensor = torch.from_numpy(np.repeat(values, num_frames, axis=0))
            # Page-locked, so that the copy does not wait for the copies of other batches.
            tensor = tensor.pin_memory() if frames.is_cuda else tensor
            return tensor.to(frames.device, non_blocking=frames.is_cuda)

        matrices = None if amounts.matrices is None else by_frame(amounts.matrices)
        colours = {
            name: by_frame(values.astype(np.float32)[:, None, None, None]) for name, values in amounts.colours.items()
        }
        values = frames.flatten(0, 1).to(torch.float32) / 255
        changed = augment_pixels(self._augmentation.augment, values, matrices, colours, self._pixels)
        levels = (changed * 255).round().clip(0, 255).to(torch.uint8).view(frames.shape)
        is_black = frames.flatten(2).amax(dim=2) == 0
        return torch.where(is_black[:, :, None, None, None], frames, levels)

    def move_depth(self, depth: torch.Tensor, matrices: np.ndarray) -> torch.Tensor:
        """Return moved depth, uint16 [b, F, H, W], by matrices float64 [b, 2, 3]."""
        height, width = depth.shape[2:]
        millimetres = depth.to(torch.int32)
        moved = []
        for row, matrix in enumerate(torch.from_numpy(matrices).to(depth.device)):
            source_row, source_column, exists = source_indices(matrix, height, width, torch)
            rows, columns = source_row.clip(0, height - 1).long(), source_column.clip(0, width - 1).long()
            moved.append(torch.where(exists, millimetres[row][:, rows, columns], 0))
        return torch.stack(moved).to(torch.uint16)
