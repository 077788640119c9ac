"""Colours of depth maps."""

from __future__ import annotations

import numpy as np

_TURBO = np.array(
    [
        [0.13572138, 4.61539260, -42.66032258, 132.13108234, -152.94239396, 59.28637943],
        [0.09140261, 2.19418839, 4.84296658, -14.18503333, 4.27729857, 2.82956604],
        [0.10667330, 12.64194608, -60.58204836, 110.36276771, -89.90310912, 27.34824973],
    ],
    np.float32,
)


def depth_range(depth: np.ndarray) -> tuple[float, float]:
    """Return the 1st and 99th percentile of the measured depths; (0, 1) for maps without any."""
    measured = depth[depth > 0]
    if not measured.size:
        return 0.0, 1.0
    near, far = np.percentile(measured, (1, 99))
    return float(near), float(max(far, near + 1))


def colour_depth(depth: np.ndarray, depth_ends: tuple[float, float]) -> np.ndarray:
    """Return depth maps uint16 [..., H, W] in colours, uint8 [..., H, W, 3]: red near, blue far, black where unknown.

    ``depth_ends`` are the near and far depth in mm. The colours are those of Google's Turbo map (A. Mikhailov, 2019).
    """
    near, far = depth_ends
    # Both ends of the map are nearly black, which is the colour of pixels without a depth.
    map_position = 0.92 - 0.84 * np.clip((depth.astype(np.float32) - near) / (far - near), 0, 1)
    powers = map_position[..., None] ** np.arange(6, dtype=np.float32)
    colours = np.clip(powers @ _TURBO.T, 0, 1) * 255
    return np.ascontiguousarray(np.where(depth[..., None] > 0, colours, 0).astype(np.uint8))
