"""Parameters of a conversion, and their comparison with the parameters that an output was begun with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from convert.errors import ConflictError


def parse_parameters(content: bytes, *, where: str) -> dict[str, Any]:
    """Return the parameters of a conversion from their file; raises ConflictError if they are no JSON object."""
    try:
        found = json.loads(content)
    except ValueError as error:
        raise ConflictError(f"{where}: not JSON ({error}); run with --overwrite") from None
    if not isinstance(found, dict):
        raise ConflictError(f"{where}: not a JSON object; run with --overwrite")
    return found


def check_parameters(before: Mapping[str, Any], now: Mapping[str, Any], *, where: str | Path) -> None:
    """Raise ConflictError if two sets of parameters differ, naming each difference.

    ``frame_offsets`` are not named: they follow from ``frames`` and ``offset``.
    """
    now = json.loads(json.dumps(dict(now)))
    differ = [key for key in sorted({*before, *now} - {"frame_offsets"}) if before.get(key) != now.get(key)]
    if differ:
        changes = "; ".join(f"{key} was {before.get(key)!r}, now {now.get(key)!r}" for key in differ)
        raise ConflictError(
            f"{where} holds a conversion with other parameters: {changes}. Use another --output, the old parameters, "
            "or --overwrite"
        )
