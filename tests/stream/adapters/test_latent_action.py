"""Pairs of frames of LAPA and UniVLA."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stream import Loader, make_loader
from stream.adapters import latent_action
from tests.stream.adapters.raw import Raw, changed, places


def test_the_second_frame_is_an_offset_later_or_the_last(frames_root: Path) -> None:
    def load(preset: latent_action.Preset) -> Loader:
        sample = changed(latent_action.sample(preset, offset=4, image_size=(64, 64)), select={"where": None})
        return make_loader(frames_root, "viola", batch_size=40, shuffle="none", **sample)

    lapa, univla = load("lapa"), load("univla")
    raw, video, videos = Raw(frames_root, "viola"), lapa.batch_at(0)["video"], univla.batch_at(0)["videos"]
    assert (video.shape, video.dtype) == ((40, 3, 2, 64, 64), np.float32)
    assert (videos.shape, videos.dtype) == ((40, 2, 3, 64, 64), np.float32)
    for row, (episode, t) in enumerate(places(univla)):
        for position, step in enumerate((t, min(t + 4, raw.length[episode] - 1))):
            frame = raw.value("frames/primary", episode, step)[0].transpose(2, 0, 1) / np.float32(255)
            np.testing.assert_array_equal(video[row, :, position], frame)
            np.testing.assert_array_equal(videos[row, position], frame)


def test_instructions_have_no_punctuation(frames_root: Path) -> None:
    loader = make_loader(frames_root, "bridge,rt1", batch_size=8, **latent_action.sample("univla"))
    batch = loader.batch_at(0)
    expected = [ref.language.lower().replace(",", "") for ref in loader.describe(0)]
    assert batch["task_instruction"] == expected != [ref.language for ref in loader.describe(0)]
    assert batch["dataset_names"] == [ref.dataset for ref in loader.describe(0)]


def test_a_pairs_root_takes_complete_pairs(oxe_root: Path, caplog: pytest.LogCaptureFixture) -> None:
    loader = make_loader(oxe_root, "bridge", batch_size=4, **latent_action.sample())
    assert "no sample beyond the edges of bridge, which hold only complete pairs" in caplog.text
    inside = changed(latent_action.sample(), frames={"edges": "drop"})
    assert loader.sizes == make_loader(oxe_root, "bridge", batch_size=4, **inside).sizes
    batch = loader.batch_at(0)
    assert batch["video"].shape == (4, 3, 2, 256, 256) and 0 <= batch["video"].min() < batch["video"].max() <= 1
