"""The content of a row of a batch, from the source's own values of its dataset, episode and step."""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from tests.reference.samples import Member, Reach, Refused, Sample, at, reaches, requests, value_of
from tests.reference.source import Vector


def _steps(value: Any, member: Member, *, least: int) -> Any:
    """Return a count of steps of a member, which may be given as a time."""
    if not isinstance(value, str):
        return value
    if at(value, member.source) < least:
        raise Refused("a time of no step")
    return at(value, member.source)


_NOTHING = Vector((), lambda episode, t: ())


@functools.cache
def decode(encoded: bytes) -> np.ndarray:
    """Return the picture of a JPEG, or the depth of a PNG, by another library than the loader's."""
    opened = Image.open(io.BytesIO(encoded))
    return np.asarray(opened if opened.format == "PNG" else opened.convert("RGB"))


_FILTERS = {"area": Image.Resampling.BOX, "lanczos": Image.Resampling.LANCZOS, "bilinear": Image.Resampling.BILINEAR}


def resize(picture: np.ndarray, size: tuple[int, int], *, fit: str, filter: str) -> np.ndarray:
    """Return a picture at a size, or depth with the value at the middle of each new pixel; the rest is black."""
    (height, width), (old_height, old_width) = size, picture.shape[:2]
    if fit == "pad":
        ratio = max(old_width / width, old_height / height)
        height, width = max(1, int(old_height / ratio)), max(1, int(old_width / ratio))
    if picture.ndim == 3:
        inner = np.asarray(Image.fromarray(picture).resize((width, height), _FILTERS[filter]))
    else:
        rows = [math.floor((row + 0.5) * old_height / height) for row in range(height)]
        columns = [math.floor((column + 0.5) * old_width / width) for column in range(width)]
        inner = np.array([[picture[row, column] for column in columns] for row in rows])
    padded = np.zeros((*size, *picture.shape[2:]), picture.dtype)
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    padded[top : top + height, left : left + width] = inner
    return padded


class Rows:
    def __init__(self, members: Sequence[Member], case: Mapping[str, Any]) -> None:
        self.members = members
        self.case = case
        self.windows = [reaches(case["frames"], member) for member in members]
        self.actions = [self._vector(member, "action") for member in members]
        self.states = [self._vector(member, "state") for member in members]
        self.chooses = case["frames"] is not None or case["cameras"] is not None or case["bounds"] == "clamp"
        self.horizons = [_steps(case["horizon"], member, least=1) or member.source.offset for member in members]
        self.firsts = {
            name: [_steps(case[name], member, least=-(10**6)) for member in members]
            for name in ("action_from", "state_from")
        }
        self.steps = max(self.horizons)

    def _vector(self, member: Member, vector_kind: str) -> Vector:
        columns = (self.case[f"{vector_kind}_columns"] or {}).get(member.name)
        if columns is not None:
            chosen = [(entry, None) if isinstance(entry, str) else entry for entry in columns]
            sizes = [_width(member, name) if dimensions is None else len(dimensions) for name, dimensions in chosen]
            return Vector(
                ("absolute",) * sum(sizes),
                lambda episode, t: [
                    value for name, dimensions in chosen for value in _chosen(episode.steps, name, dimensions, t)
                ],
            )
        if self.case[f"{vector_kind}_space"] is not None:
            return member.source.joint.get(vector_kind, _NOTHING)
        return member.source.action if vector_kind == "action" else member.source.state

    def check(self, number: int, sample: Sample, row: Mapping[str, Any]) -> None:
        member, case = self.members[number], self.case
        episode = member.find(sample)
        frame_steps = self._check_frames(number, sample, row)
        if case["metadata"] == "none":
            return
        assert row["dataset"] == number
        if case["metadata"] == "dataset_only":
            return
        assert (row["episode"], row["step"]) == (sample.episode, sample.step)
        if frame_steps is not None:
            assert row["offset"] == frame_steps[len(self.windows[number]) - 1] - sample.step
        else:
            assert row["offset"] == self.windows[number][-1].low
        length = self.horizons[number]
        width = max(len(vector.kinds) for vector in self.actions)
        values, real = self._window(number, sample, self.actions, self.firsts["action_from"][number], self.steps, width)
        values[length:], real[length:] = 0, False
        if case["action"] != "window":
            inside = min(episode.length - sample.step, length)
            values, real = self._reduce(number, values[:inside], real[:inside])
        _equal(row["action_mask"], real)
        np.testing.assert_allclose(row["action"], values, rtol=0 if case["action"] == "window" else 1e-5, atol=1e-6)
        width = max(len(vector.kinds) for vector in self.states)
        first = self.firsts["state_from"][number]
        values, real = self._window(number, sample, self.states, first, case["state_horizon"], width)
        if case["state_horizon"] == 1:
            values, real = values[0], real[0]
        _equal(row["state_mask"], real)
        _equal(row["state"], values)
        for column in case["columns"]:
            self._check_column(column, member, sample, row)

    def _check_frames(self, number: int, sample: Sample, row: Mapping[str, Any]) -> list[int] | None:
        member, window = self.members[number], self.windows[number]
        episode = member.find(sample)
        last = episode.length - 1
        most = max(map(len, self.windows))
        frame_steps = row["frame_step"].tolist() if self.chooses else None
        for request in requests(self.case):
            camera = member.camera(request.camera)
            key = "depth" if request.is_depth else "frames"
            pictures = row[f"{key}{request.suffix}"]
            has_mask = f"{key}_mask{request.suffix}" in row
            assert has_mask == (self.chooses or len(set(map(len, self.windows))) > 1)
            mask = row[f"{key}_mask{request.suffix}"] if has_mask else [True] * len(window)
            tolerance = 0 if request.is_depth else member.tolerance + 2 * (request.size is not None)
            assert len(pictures) == most
            for frame in range(most):
                if frame >= len(window):
                    assert not pictures[frame].any()
                    assert not mask[frame]
                    continue
                step = frame_steps[frame] if frame_steps is not None else sample.step + window[frame].low
                allowed = _allowed(window[frame], sample.step, last)
                assert any(step == moved for moved, _ in allowed), f"frame {frame} is of step {step}"
                shown = episode.pictures[camera][step] if camera else None
                possible = {is_real and shown is not None for moved, is_real in allowed if moved == step}
                assert bool(mask[frame]) in possible
                expected = np.zeros_like(pictures[frame])
                if shown is not None:
                    expected = decode(shown)
                    if request.size is not None:
                        case = self.case
                        expected = resize(expected, request.size, fit=case["image_fit"], filter=case["image_filter"])
                assert pictures[frame].shape == expected.shape
                assert np.abs(pictures[frame].astype(int) - expected).max() <= tolerance, (
                    f"{request}: frame {frame} of step {step}"
                )
        return frame_steps

    def _window(
        self, number: int, sample: Sample, vectors: Sequence[Vector], first: int, count: int, width: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the values of some steps from t + first on, 0 where there is none; and which are real."""
        episode, vector = self.members[number].find(sample), vectors[number]
        values, real = np.zeros((count, width), np.float32), np.zeros((count, width), bool)
        for position in range(count):
            step = sample.step + first + position
            if 0 <= step < episode.length and vector.kinds:
                for dim, value in enumerate(vector.values(episode, step)):
                    if value is not None:
                        values[position, dim], real[position, dim] = value, True
        return values, real

    def _reduce(self, number: int, values: np.ndarray, real: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the one action of the steps of a window that are in the episode."""
        source, how = self.members[number].source, self.case["action"]
        out, mask = np.zeros(values.shape[1], np.float32), np.zeros(values.shape[1], bool)
        for dim, kind in enumerate(self.actions[number].kinds):
            mask[dim] = real[0, dim] if how == "first" else real[:, dim].all()
            if not mask[dim]:
                continue
            mean = float(np.mean(values[:, dim].astype(float)))
            total = float(np.sum(values[:, dim].astype(float)))
            by_kind = {"displacement": total, "velocity": total / (source.rate or 1)}
            last = float(values[-1, dim])
            reductions = {"first": float(values[0, dim]), "mean": last if kind == "flag" else mean}
            out[dim] = reductions[how] if how in reductions else by_kind.get(kind, last)
        return out, mask

    def _check_column(self, column: str, member: Member, sample: Sample, row: Mapping[str, Any]) -> None:
        episode = member.find(sample)
        try:
            value = value_of(member, episode, sample.step, column)
        except KeyError:
            value = None
        actual = row[column]
        if isinstance(actual, str):
            assert actual == (value or "")
            return
        mask = np.ravel(row[f"{column}_mask"])
        count = 0 if value is None else np.size(value)
        expected = np.zeros(len(mask), actual.dtype)
        expected[:count] = 0 if value is None else value
        _equal(mask, np.arange(len(mask)) < count)
        _equal(np.ravel(actual), expected)


def _equal(actual: Any, expected: Any) -> None:
    np.testing.assert_array_equal(actual, expected)


def _allowed(reach: Reach, t: int, last: int) -> set[tuple[int, bool]]:
    """Return the steps that a frame may show, and whether each is its own or a repeated edge."""
    if reach.name == "last":
        return {(last, True)}
    if reach.name == "goal":
        return {(step, True) for step in range(t + 1, last + 1)} or {(last, False)}
    return {(min(max(step, 0), last), 0 <= step <= last) for step in range(t + reach.low, t + reach.high + 1)}


def _width(member: Member, column: str) -> int:
    for split in member.source.splits:
        for episode in member.source.episodes(split):
            for value in episode.steps["action_" if column == "action" else column]:
                if value is not None:
                    return int(np.size(value))
    raise Refused(column)


def _chosen(steps: Mapping[str, list[Any]], name: str, dimensions: Sequence[int] | None, t: int) -> list[Any]:
    value = steps["action_" if name == "action" else name][t]
    if value is None:
        return [None] * (1 if dimensions is None else len(dimensions))
    flat = np.ravel(value)
    return list(flat if dimensions is None else flat[list(dimensions)])
