"""Colours of a video are those that were filmed, whichever matrix its frames are stored with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.video.reformatter import Colorspace, VideoReformatter

from convert.source.lerobot.video import VideoFile

COLOURS = ((200, 40, 40), (40, 180, 60), (30, 60, 190), (220, 200, 30), (128, 128, 128), (240, 240, 240))
BT709, BT601 = 1, 6
"""Numbers of the matrices in ITU-T H.273."""
OWN = {BT709: Colorspace.ITU709, BT601: Colorspace.ITU601}


@pytest.mark.parametrize("matrix", [BT709, BT601], ids=["BT.709", "BT.601"])
def test_colours_are_decoded_with_the_matrix_that_the_video_names(matrix: int, tmp_path: Path) -> None:
    with av.open(str(tmp_path / "video.mp4"), "w") as out:
        stream: Any = out.add_stream("libx264", rate=10, options={"crf": "4"})
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        context = stream.codec_context
        context.colorspace = context.color_primaries = context.color_trc = matrix
        context.color_range = 1
        for colour in COLOURS:
            pixels = np.broadcast_to(np.array(colour, np.uint8), (64, 64, 3)).copy()
            filmed = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            out.mux(stream.encode(VideoReformatter().reformat(filmed, format="yuv420p", dst_colorspace=OWN[matrix])))
        out.mux(stream.encode())
    video = VideoFile(tmp_path / "video.mp4", name="video.mp4")
    for colour, frame in zip(COLOURS, video.frames(np.arange(len(COLOURS))), strict=True):
        assert np.abs(np.asarray(frame)[32, 32].astype(int) - colour).max() <= 6, (colour, np.asarray(frame)[32, 32])
    video.close()
