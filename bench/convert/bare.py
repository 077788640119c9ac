"""Bare codec work of a conversion: decode, resize and encode the same frames; no files, no Beam, no pairs.

The calls do not go through `convert.shard.images`, so that its overhead shows. They keep OpenCV's own order of colours
from decoder to encoder.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import simplejpeg

from bench.convert.source import BenchSource, Case, read_episodes, used_steps
from bench.measure.child import Team

SIZE = 256
QUALITY = 95

_OPTIONS = [cv2.IMWRITE_JPEG_QUALITY, QUALITY, cv2.IMWRITE_JPEG_OPTIMIZE, 1]
_OPTIONS += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420]

_held: tuple[Case, list[bytes]]


def transcode(data: bytes, case: Case) -> bytes:
    """Do the codec work of one frame and return the JPEG to store; pass-through returns the frame itself."""
    if not case.transcoded:
        simplejpeg.decode_jpeg(data)
        return data
    if case.encoding == "png":
        pixels = np.asarray(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_BGR))
    else:
        pixels = simplejpeg.decode_jpeg(data, colorspace="BGR")
    small = cv2.resize(pixels, (SIZE, SIZE), interpolation=cv2.INTER_AREA)
    return cv2.imencode(".jpg", small, _OPTIONS)[1].tobytes()


def set_up_opencv() -> None:
    """Set OpenCV as the converter does: one thread a process, and the same pixels on every processor."""
    cv2.setNumThreads(1)
    cv2.ipp.setUseIPP(False)


def run_bare(source: BenchSource, *, num_workers: int) -> dict[str, Any]:
    """Transcode every frame that a conversion of ``source`` uses, once, in ``num_workers`` processes.

    Each process takes the same number of shards and has its frames in memory before any process starts.

    Returns:
        seconds: From the first start to the last end.
        cpu_seconds: CPU time of the processes in this time.
        others_cpu_seconds: CPU time of everything else on the machine.
        frames: Number of frames.
    """
    with Team(num_workers) as team:
        frames = team.run(_hold, [(source.case, source.files[index::num_workers]) for index in range(num_workers)])
        turn = team.run(_transcode, range(num_workers))
    return {
        "seconds": turn.seconds,
        "cpu_seconds": turn.cpu_seconds,
        "others_cpu_seconds": turn.others_cpu_seconds,
        "frames": sum(frames.results),
    }


def _hold(share: tuple[Case, tuple[Any, ...]]) -> int:
    """Read the frames of a share of the files, and return their number."""
    global _held
    case, files = share
    _held = case, [episode[step] for episode in read_episodes(files, case) for step in used_steps(len(episode))]
    set_up_opencv()
    return len(_held[1])


def _transcode(number: int) -> None:
    case, frames = _held
    for frame in frames:
        transcode(frame, case)
