"""Options of commands as fields of dataclasses, and readers of their texts."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from stream.base.arguments import whole_number
from stream.base.errors import ArgumentError, closest


def option(default: Any, read: Callable[[str], Any], help_text: str, **more: Any) -> Any:
    """Return a dataclass field that is an option of a command; ``read`` reads its text, and is ``bool`` for a flag.

    The default is added to the help. ``more`` are further arguments of ``argparse.ArgumentParser.add_argument``.
    """
    return dataclasses.field(default=default, metadata={"read": read, "what": help_text, "more": more})


def options_of(kind: type[Any]) -> list[dataclasses.Field[Any]]:
    """Return the options of a dataclass, its own before those of its bases."""
    fields = {field.name: field for field in dataclasses.fields(kind) if "read" in field.metadata}
    order = [name for base in kind.__mro__ for name in vars(base).get("__annotations__", ()) if name in fields]
    return [fields[name] for name in dict.fromkeys(order)]


def parameters_of(kind: type[Any]) -> list[str]:
    """Return the fields of a dataclass of options that may change figures: all but folders, --sweep and --json."""
    fields = dataclasses.fields(kind)
    return [
        field.name for field in fields if field.metadata.get("read") is not Path and field.name not in ("json", "sweep")
    ]


def several(read: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """Return a reader of values separated by commas, each once.

    >>> several(whole_number(1))("64, 16,64")
    (64, 16)
    """
    return lambda option_text: tuple(dict.fromkeys(read(part.strip()) for part in option_text.split(",")))


def wholes(least: int) -> Callable[[str], tuple[int, ...]]:
    """Return a reader of whole numbers of at least ``least``, with underscores between digits if wanted.

    >>> wholes(1)("64, 1_000")
    (64, 1000)
    """
    return several(lambda option_text: whole_number(least)(option_text.replace("_", "")))


def one_of(names: Collection[str], noun: str = "") -> Callable[[str], str]:
    """Return a reader of one of some names; another one is answered with all of them, or with the closest ``noun``."""

    def read(option_text: str) -> str:
        if option_text in names:
            return option_text
        if noun:
            suggestion = closest(option_text, names, noun=f"{noun}s")
            raise argparse.ArgumentTypeError(f"no {noun} {option_text!r}; {suggestion}")
        raise argparse.ArgumentTypeError(f"found {option_text!r}, expected one of {', '.join(names)}")

    return read


def number(least: float, most: float = 1e12) -> Callable[[str], float]:
    """Return a reader of numbers in a range.

    >>> number(0)("0.5")
    0.5
    """

    def read(option_text: str) -> float:
        try:
            value = float(option_text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"found {option_text!r}, expected a number from {least:g} to {most:g}")
        return value

    return read


def usable_device(requested: str | None) -> str:
    """Return the device of ``--device``, by default CUDA if there is one; raise ArgumentError if it is missing."""
    import torch

    device = requested or ("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ArgumentError(f"argument --device: found {device!r}, expected cuda, cuda:1 or cpu")
    index = int(device.partition(":")[2] or 0)
    if device != "cpu" and index >= torch.cuda.device_count():
        raise ArgumentError(f"argument --device: found {device!r}, torch sees no CUDA device {index} here")
    return device
