"""Generated and changed input, to everything that reads what others wrote: only errors of ours come out.

``FUZZ_EXAMPLES`` says how many inputs each gets; ``make fuzz`` gives it thousands.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from stream.format.names import TABLE_KINDS
from tests.fixtures.faults.memory_limit import memory_limit
from tests.fuzz.targets import Target, make_targets

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "40"))
# `make test` tries the same inputs each time, `make fuzz` others.
FUZZ = settings(
    max_examples=EXAMPLES,
    derandomize="FUZZ_EXAMPLES" not in os.environ,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
NAMES = (
    *("tfrecord", "episode", "record", "frame", "split", "mixture", "datasets", "manifest", *TABLE_KINDS),
    *("loader.json", "state", "features.json", "dataset_info.json"),
)
NESTED = (b"[" * 100_000, b"{" * 20_000, b'{"a":' * 100_000, b"- " * 20_000, b"((" * 10_000)
BOMBS = (
    b"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n",
    b"members: {bridge: {weight: 1" + b":1" * 100_000 + b"}}",
    b"members: {bridge: {weight: 0x" + b"f" * 9_000 + b"}}",
    b"!!python/object/apply:os.system ['touch ran']",
    b"members: !!python/object:os.environ {}",
    b"members: {bridge: {weight: 1}, bridge: {weight: 5}}",
    b"1" * 100_000,
)


@pytest.fixture(scope="module")
def targets(oxe_root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    created = make_targets(oxe_root, tmp_path_factory.mktemp("fuzz"))
    assert set(created) == set(NAMES)
    return created


@pytest.fixture(scope="module", autouse=True)
def limit() -> Iterator[None]:
    with memory_limit():
        yield


@pytest.mark.parametrize("name", NAMES)
def test_sound_input_is_read(targets: dict[str, Target], name: str) -> None:
    for seed in targets[name].seeds:
        targets[name].read(seed)


@pytest.mark.parametrize("name", NAMES)
def test_changed_input_is_read_or_refused(targets: dict[str, Target], name: str) -> None:
    target = targets[name]

    @FUZZ
    @given(st.integers(0, 2**32))
    def check(number: int) -> None:
        random = Random(number)
        target.read(target.mutate(random.choice(target.seeds), random))

    check()


@pytest.mark.parametrize("name", NAMES)
def test_any_input_is_read_or_refused(targets: dict[str, Target], name: str) -> None:
    target = targets[name]

    @FUZZ
    @given(st.binary(max_size=300) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "replace")))
    @example(b"")
    def check(content: bytes) -> None:
        target.read(content)

    check()


@pytest.mark.parametrize("name", NAMES)
def test_nesting_and_bombs_are_refused_in_little_memory(
    targets: dict[str, Target], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with memory_limit(600 << 20):
        for content in (*NESTED, *BOMBS):
            targets[name].read(content)
    assert not (tmp_path / "ran").exists()
