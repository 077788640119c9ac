"""Changed copies of sound input: bytes, texts and JSON."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

_NUMBERS = (b"\0", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\xff", b"\0\0\0\x80", b"\xff" * 7 + b"\x7f", b"\xff\xda")
_HUGE = 10**18
_ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 2**31, 2**63, _HUGE, 10**40, -(10**18), 1e308, float("nan"), float("inf")),
    *("", "x", "..", "../../etc/passwd", "/etc/passwd", "\0", "x" * 100_000, "1" * 5_000, "train[:90%]"),
    *([], [[]], {}, {"a": {}}, [None], [_HUGE], {"select": [_HUGE], "path": "action"}, [{"path": "x", "dims": _HUGE}]),
)


def mutate_bytes(content: bytes, random: Random) -> bytes:
    changed = bytearray(content)
    for _ in range(random.randint(1, 5)):
        position, length = random.randint(0, len(changed)), random.choice((1, 2, 4, 8, 64, 1000))
        match random.randrange(5):
            case 0 if changed:
                changed[position % len(changed)] ^= 1 << random.randrange(8)
            case 1:
                del changed[position : position + length]
            case 2:
                changed[position:position] = changed[position : position + length] * random.choice((1, 1, 2, 100))
            case 3:
                number = random.choice(_NUMBERS)
                changed[position : position + len(number)] = number
            case _:
                changed[position:position] = random.randbytes(min(length, 64))
    return bytes(changed)


def mutate_json(content: bytes, random: Random) -> bytes:
    if random.random() < 0.1:
        return mutate_bytes(content, random)
    tree = copy.deepcopy(json.loads(content))
    for _ in range(random.randint(1, 3)):
        positions = list(_places(tree))
        if not positions:
            break
        node, key = random.choice(positions)
        match random.randrange(6):
            case 0:
                del node[key]
            case 1:
                target, other_key = random.choice(positions)
                node[key] = copy.deepcopy(target[other_key])
            case 2 if isinstance(node, dict):
                node[random.choice(("", "x", "../x", "x" * 300))] = node.pop(key)
            case _:
                node[key] = copy.deepcopy(random.choice(_ODD))
    return json.dumps(tree).encode()


def _places(tree: Any) -> Any:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        for key in keys:
            yield node, key
            waiting.append(node[key])
