"""Depth videos of LeRobot, whose pixels are codes of 12 bits.

Source: huggingface/lerobot, src/lerobot/datasets/depth_utils.py and configs/video.py. The same steps in the same types
give the same millimetres as its reader. A pixel that was not measured has code 0 there, as ``depth_min`` has.
"""

from __future__ import annotations

import math
import re
from functools import cached_property

import numpy as np
from pydantic import BaseModel, ConfigDict, model_validator

_CODES = 4096
DEEP_PIXELS = re.compile(r"(?:gray|yuv4\d\dp)(?:9|1\d)(le|be)")
"""Formats whose first plane has the values of pixels in two bytes."""


class DepthCodes(BaseModel):
    """Meaning of the codes of a depth video, in ``info.json`` as ``video.depth_min`` and so on.

    Attributes:
        depth_min, depth_max: Metres of the first and of the last code.
        shift: Metres that are added before the logarithm.
        use_log: Whether codes are equally spaced in the logarithm, not in metres.
    """

    model_config = ConfigDict(frozen=True)

    depth_min: float = 0.01
    depth_max: float = 10.0
    shift: float = 3.5
    use_log: bool = True

    @model_validator(mode="after")
    def _check(self) -> DepthCodes:
        if not self.depth_min < self.depth_max < math.inf or (self.use_log and not self.depth_min + self.shift > 0):
            raise ValueError(f"depth from {self.depth_min} to {self.depth_max} m, shifted by {self.shift}, is no range")
        return self

    @cached_property
    def millimetres(self) -> np.ndarray:
        """Millimetres of each code, uint16 [4096]."""
        low, high = self.depth_min, self.depth_max
        if self.use_log:
            low, high = math.log(low + self.shift), math.log(high + self.shift)
        metres = np.empty(_CODES, np.float32)
        np.multiply(np.arange(_CODES, dtype=np.uint16), (high - low) / (_CODES - 1), out=metres)
        np.add(metres, low, out=metres)
        if self.use_log:
            np.exp(metres, out=metres)
            np.subtract(metres, self.shift, out=metres)
        np.clip(metres, self.depth_min, self.depth_max, out=metres)
        return np.clip(np.rint(metres * np.float32(1000)), 0, np.iinfo(np.uint16).max).astype(np.uint16)
