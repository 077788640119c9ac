"""Sizes and durations for people."""

from __future__ import annotations


def human_bytes(count: float) -> str:
    """Return a size in decimal units.

    >>> human_bytes(1_234_567), human_bytes(12)
    ('1.2 MB', '12 B')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"


def human_seconds(seconds: float) -> str:
    """Return a duration.

    >>> human_seconds(42), human_seconds(3723)
    ('42s', '1:02:03')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
