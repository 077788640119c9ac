"""The content of a row of a batch, from the source's own values of its dataset, episode and step."""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
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


def _delay(delay: int | str, member: Member, stride: int) -> int:
    steps = _steps(delay, member, least=0)
    return math.ceil(steps / stride) if isinstance(delay, str) else steps


def _count(value: Any, member: Member, stride: int) -> int:
    """Return the count of the steps of a vector: of a time every so many-th step in it."""
    steps = _steps(value, member, least=1) or member.source.offset
    return sum(step % stride == 0 for step in range(steps)) if isinstance(value, str) else steps


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


_BITS = (1 << 64) - 1


def uniform(sample: int, *parts: int | str) -> float:
    """Return the random number of a sample for a purpose, in Python's integers: SplitMix64 of a hash of the purpose."""
    text = "\0".join(f"{type(part).__name__}:{part}" for part in parts)
    key = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    mixed = ((sample + 1) * 0x9E3779B97F4A7C15 + key) & _BITS
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _BITS
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _BITS
    return ((mixed ^ (mixed >> 31)) >> 11) / (1 << 53)


class Rows:
    def __init__(self, members: Sequence[Member], case: Mapping[str, Any]) -> None:
        self.members = members
        self.case = case
        self.windows = [reaches(case, member) for member in members]
        self.vectors = {name: [self._vector(member, name) for member in members] for name in case["vectors"]}
        self.chooses = case["cameras"] is not None or case["edges"] == "repeat"
        self.chooses |= any(member.of(case, "steps") is not None for member in members)
        self.strides = {
            name: [_steps(member.of(case, f"{name}_stride"), member, least=1) for member in members]
            for name in self.vectors
        }
        self.counts = {
            name: [
                _count(member.of(case, f"{name}_steps"), member, stride)
                for member, stride in zip(members, self.strides[name], strict=True)
            ]
            for name in self.vectors
        }
        self.firsts = {
            name: [_steps(member.of(case, f"{name}_start"), member, least=-(10**6)) for member in members]
            for name in self.vectors
        }
        if case["history_dropout"]:
            self.chooses = True
            if not any(reach.high < 0 and not reach.name for window in self.windows for reach in window):
                raise Refused("no history")
        self.delays = []
        if "action" in self.vectors and case["max_delay"]:
            self.delays = [
                [_delay(case[name], member, stride) for name in ("min_delay", "max_delay")]
                for member, stride in zip(members, self.strides["action"], strict=True)
            ]
            if any(most >= count for (_, most), count in zip(self.delays, self.counts["action"], strict=True)):
                raise Refused("a delay of the complete chunk")
        self.longest_interval = 0
        if case["between"] and "action" in self.vectors:
            self.longest_interval = max(map(_longest_interval, self.windows))
            if len(set(map(len, self.windows))) > 1:
                raise Refused("intervals of members with other counts of frames")

    def _vector(self, member: Member, vector_kind: str) -> Vector:
        columns = member.of(self.case, f"{vector_kind}_columns")
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
        frame_steps = self._check_frames(number, sample, row)
        assert (row["dataset"], row["episode"], row["step"]) == (number, sample.episode, sample.step)
        if frame_steps is not None:
            assert row["offset"] == frame_steps[len(self.windows[number]) - 1] - sample.step
        else:
            assert row["offset"] == self.windows[number][-1].low
        assert ("action" in row, "state" in row) == ("action" in self.vectors, "state" in self.vectors)
        for name in self.vectors:
            values, real = self._values(name, number, sample)
            if name == "state" and all(member.of(case, "state_steps") == 1 for member in self.members):
                values, real = values[0], real[0]
            if name == "state" and self._is_dropped("state", row):
                values, real = np.zeros_like(values), np.zeros_like(real)
            is_exact = name == "state" or case["reduce"] is None
            _equal(row[f"{name}_mask"], real)
            np.testing.assert_allclose(row[name], values, rtol=0 if is_exact else 1e-5, atol=0 if is_exact else 1e-6)
        for column in case["columns"]:
            self._check_column(column, member, sample, row)
        assert ("action_delay" in row) == bool(self.delays)
        if self.delays:
            least, most = self.delays[number]
            delay = least + int(uniform(int(row["sample"]), case["seed"], "delay") * (most - least + 1))
            assert row["action_delay"] == delay
            assert row["action_prefix_mask"].tolist() == [step < delay for step in range(max(self.counts["action"]))]

    def _is_dropped(self, part: str, row: Mapping[str, Any]) -> bool:
        probability = self.case[f"{part}_dropout"]
        return uniform(int(row["sample"]), self.case["seed"], "dropout", part) < probability

    def _check_frames(self, number: int, sample: Sample, row: Mapping[str, Any]) -> list[int] | None:
        member, window = self.members[number], self.windows[number]
        episode = member.find(sample)
        last = episode.length - 1
        most = max(map(len, self.windows))
        frame_steps = row["frame_step"].tolist() if self.chooses else None
        is_dropped = self._is_dropped("history", row)
        assert ("frame_time" in row) == self.case["times"]
        if self.case["times"]:
            distances = [reach.low for reach in window] + [0] * (most - len(window))
            if frame_steps is not None:
                distances = [step - sample.step for step in frame_steps]
            _equal(row["frame_time"], [np.float32(steps / (member.source.rate or np.nan)) for steps in distances])
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
                if is_dropped and window[frame].high < 0 and not window[frame].name:
                    shown = None
                possible = {is_real and shown is not None for moved, is_real in allowed if moved == step}
                assert bool(mask[frame]) in possible
                expected = np.zeros_like(pictures[frame])
                if shown is not None:
                    expected = decode(shown)
                    if request.size is not None:
                        case = self.case
                        expected = resize(expected, request.size, fit=case["fit"], filter=case["filter"])
                assert pictures[frame].shape == expected.shape
                assert np.abs(pictures[frame].astype(int) - expected).max() <= tolerance, (
                    f"{request}: frame {frame} of step {step}"
                )
        return frame_steps

    def _values(self, name: str, number: int, sample: Sample) -> tuple[np.ndarray, np.ndarray]:
        """Return the action or the state of a row, 0 where there is none; and which of its numbers are real."""
        episode, first = self.members[number].find(sample), sample.step + self.firsts[name][number]
        if name == "action" and self.longest_interval:
            intervals = itertools.pairwise(self.windows[number])
            parts = [self._interval(number, sample, begin.low, end.low) for begin, end in intervals]
            return np.stack([values for values, _ in parts]), np.stack([real for _, real in parts])
        stride = self.strides[name][number]
        steps = [first + stride * position for position in range(self.counts[name][number])]
        if self.case[f"{name}_edges"] == "repeat":
            steps = [min(max(step, 0), episode.length - 1) for step in steps]
        if name == "action" and self.case["reduce"] is not None:
            return self._reduce(number, sample, [step for step in steps if step < episode.length])
        return self._window(name, number, sample, steps, max(self.counts[name]))

    def _interval(self, number: int, sample: Sample, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the actions from the picture of one frame to that of the next one."""
        last = self.members[number].find(sample).length - 1
        shown_begin, shown_end = (min(max(sample.step + distance, 0), last) for distance in (begin, end))
        steps = range(sample.step + begin, sample.step + end)
        if self.case["reduce"] is not None:
            return self._reduce(number, sample, [step for step in steps if shown_begin <= step < shown_end])
        values, real = self._window("action", number, sample, steps, self.longest_interval)
        for position, step in enumerate(steps):
            if not shown_begin <= step < shown_end:
                values[position], real[position] = 0, False
        return values, real

    def _window(
        self, name: str, number: int, sample: Sample, steps: Sequence[int], count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the values of some steps, 0 where there is none; and which are real."""
        vectors = self.vectors[name]
        episode, vector, width = self.members[number].find(sample), vectors[number], max(len(v.kinds) for v in vectors)
        values, real = np.zeros((count, width), np.float32), np.zeros((count, width), bool)
        for position, step in enumerate(steps):
            if 0 <= step < episode.length and vector.kinds:
                for dim, value in enumerate(vector.values(episode, step)):
                    if value is not None:
                        values[position, dim], real[position, dim] = value, True
        return values, real

    def _reduce(self, number: int, sample: Sample, steps: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return the one action of some steps of the episode."""
        source, how = self.members[number].source, self.case["reduce"]
        values, real = self._window("action", number, sample, steps, len(steps))
        out, mask = np.zeros(values.shape[1], np.float32), np.zeros(values.shape[1], bool)
        for dim, kind in enumerate(self.vectors["action"][number].kinds if steps else ()):
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


def _longest_interval(window: Sequence[Reach]) -> int:
    if len(window) < 2 or any(reach.name or reach.low != reach.high for reach in window):
        raise Refused("intervals of one frame, or of random ones")
    lengths = [end.low - begin.low for begin, end in itertools.pairwise(window)]
    if min(lengths) < 1:
        raise Refused("frames that do not ascend")
    return max(lengths)


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
