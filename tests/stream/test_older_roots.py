"""Roots that were converted before it was written down where records lie are read by array_record, to the same end."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from stream import RecordError, digest, make_loader
from stream.format import FormatError
from stream.loader import Loader
from tests.command import run
from tests.rewritten_records import change_first_table, forget_places

MIXTURE = {"bridge": 1, "kuka": 1}


@pytest.fixture
def copied(oxe_root: Path, tmp_path: Path) -> Path:
    for name in MIXTURE:
        shutil.copytree(oxe_root / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def older(copied: Path) -> Path:
    for name in MIXTURE:
        (dataset,) = (copied / name).iterdir()
        forget_places(dataset)
    return copied


def loader_of(root: Path, num_workers: int = 0) -> Loader:
    return make_loader(root, MIXTURE, batch_size=8, seed=3, num_workers=num_workers)


def edit_records(root: Path, change: dict[str, list[int]]) -> None:
    """Change columns of the first training shard of ``bridge``, its checksums put right."""
    (dataset,) = (root / "bridge").iterdir()

    def edit(table: pa.Table) -> pa.Table:
        for name, values in change.items():
            field = table.schema.field(name)
            column = pa.array(values * (len(table) // len(values)), field.type)
            table = table.set_column(table.column_names.index(name), field, column)
        return table

    change_first_table(dataset, edit)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_the_same(oxe_root: Path, older: Path, num_workers: int) -> None:
    pairs = zip(loader_of(oxe_root), loader_of(older, num_workers), strict=False)
    for expected, batch in itertools.islice(pairs, 12):
        assert digest(batch) == digest(expected)


def test_both_kinds_may_stand_in_one_root(oxe_root: Path, copied: Path) -> None:
    (dataset,) = (copied / "kuka").iterdir()
    forget_places(dataset)
    assert digest(loader_of(copied).batch_at(5)) == digest(loader_of(oxe_root).batch_at(5))


def test_a_damaged_record_is_named(older: Path) -> None:
    for path in (older / "bridge").glob("*/train/*.arrayrecord"):
        content = bytearray(path.read_bytes())
        content[len(content) // 4] ^= 1
        content[1000] ^= 1
        path.write_bytes(content)
    with pytest.raises(RecordError, match=r"dataset bridge, split train, shard .* cannot be read \(.*hash mismatch"):
        list(itertools.islice(loader_of(older), 20))


def test_they_are_in_order_for_verify(older: Path) -> None:
    done = run(str(older), "--deep", module="convert.verify")
    assert done.code == 0, done.err


def test_only_older_roots_take_the_threads_of_array_record(oxe_root: Path, older: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        """
import sys
from pathlib import Path
from stream import make_loader
make_loader(sys.argv[1], {"bridge": 1}, batch_size=8).batch_at(0)
print(len(list(Path("/proc/self/task").iterdir())) >= 64)
"""
    )
    answers = []
    for root in (oxe_root, older):
        done = subprocess.run([sys.executable, str(script), str(root)], capture_output=True, text=True, check=True)
        answers.append(done.stdout.strip())
    assert answers == ["False", "True"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"position": [-1]}, "records lie outside of a file of"),
        ({"position": [1 << 62]}, "records lie outside of a file of"),
        ({"num_bytes": [-5]}, "records lie outside of a file of"),
        ({"num_bytes": [1 << 40]}, "records lie outside of a file of"),
        ({"num_bytes": [0]}, "its bytes are not those that were written"),
        ({"position": [0]}, "its bytes are not those that were written"),
        ({"xxh3_64": [7]}, "its bytes are not those that were written"),
    ],
)
def test_places_that_are_wrong_are_an_error(copied: Path, change: dict[str, list[int]], told: str) -> None:
    edit_records(copied, change)
    with pytest.raises((RecordError, FormatError), match=told) as raised:
        list(itertools.islice(loader_of(copied), 40))
    assert "bridge" in str(raised.value)
    done = run(str(copied), "--deep", module="convert.verify")
    assert done.code != 0
    assert "is not where the records sidecar says, or has another checksum" in done.out + done.err


def test_half_of_the_columns_is_not_one_of_ours(copied: Path) -> None:
    (dataset,) = (copied / "bridge").iterdir()
    change_first_table(dataset, lambda table: table.drop_columns(["xxh3_64"]))
    with pytest.raises((RecordError, FormatError), match=r"column 7 is None, expected .*xxh3_64"):
        list(itertools.islice(loader_of(copied), 40))
    assert run(str(copied), module="convert.verify").code != 0
