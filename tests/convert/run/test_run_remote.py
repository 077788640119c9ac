"""Conversions from and to object stores end like local ones, however they are disturbed."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.measure.ports import free_port
from convert.errors import EXIT_DAMAGED, EXIT_FAILED, EXIT_USAGE
from convert.journal.journal import FOLDER
from convert.run.command import main
from convert.storage.object_store import StoreFolder
from stream.storage.object_stores import open_store
from stream.storage.remote_folder import RemoteFolder
from tests.fixtures.command import Result, run, start, wait_until, write_damaged_dataset
from tests.fixtures.datasets.rlds_dataset import RldsDataset, demo_episode, write_dataset
from tests.fixtures.object_stores import (
    SCHEMES,
    Store,
    environment_of,
    object_store,
    objects,
    proxy,
    upload_tree,
    versions,
)

Files = dict[str, bytes]
MANIFEST = "demo/1.0.0/dataset.json"


@pytest.fixture(scope="module", params=SCHEMES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with object_store(request.param, tmp_path_factory.mktemp("store") / "log") as running:
        yield running


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> RldsDataset:
    """Nine shards in two splits, with all that can be wrong with episodes, a truncated file too."""
    return write_damaged_dataset(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def local(dataset: RldsDataset, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Return the files of the same conversion into a local folder."""
    output = tmp_path_factory.mktemp("local")
    assert main(arguments(dataset, str(dataset.root), str(output))) == EXIT_DAMAGED
    return files(output)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> RldsDataset:
    """Sixteen shards whose frames take a while to enlarge."""
    shards = [[demo_episode(12, seed=i, size=(120, 160))] for i in range(16)]
    return write_dataset(tmp_path_factory.mktemp("large"), splits={"train": shards})


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    folder = tmp_path / "staging"
    folder.mkdir()
    return folder


def arguments(dataset: RldsDataset, source: str, output: str, *more: str) -> list[str]:
    common = ["--datasets", "demo", "--source", source, "--output", output, "--config", str(dataset.registry())]
    return [*common, "--num-workers", "1", *more]


def files(root: Path) -> Files:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def without_source(content: bytes) -> dict[str, object]:
    """Return a manifest without the path of the source and the checksum that covers the path."""
    manifest = json.loads(content)
    del manifest["source"]["path"], manifest["checksum"]
    return dict(manifest)


def assert_same(actual: Files, expected: Files) -> None:
    assert set(actual) == set(expected)
    assert [name for name in expected if name != MANIFEST and actual[name] != expected[name]] == []
    assert without_source(actual[MANIFEST]) == without_source(expected[MANIFEST])


@pytest.mark.long
def test_a_conversion_from_and_to_a_bucket_is_byte_for_byte_the_local_one(
    store: Store, dataset: RldsDataset, local: Files, staging: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = store.new_bucket()
    upload_tree(dataset.path, f"{bucket}/rlds/demo/1.0.0")
    command = arguments(dataset, f"{bucket}/rlds", f"{bucket}/oxe", "--staging", str(staging))
    assert main(command) == EXIT_DAMAGED
    assert_same(objects(f"{bucket}/oxe"), local)
    assert list(staging.iterdir()) == []

    before = versions(f"{bucket}/oxe")
    capsys.readouterr()
    assert main(command) == EXIT_DAMAGED
    assert "1 of 1 were complete already" in capsys.readouterr().out
    assert versions(f"{bucket}/oxe") == before

    assert main([*command, "--offset", "3"]) == EXIT_USAGE
    assert "holds a conversion with other parameters: offset was" in capsys.readouterr().err
    assert main([*command, "--offset", "3", "--overwrite"]) == EXIT_DAMAGED
    assert set(objects(f"{bucket}/oxe")) == set(local)


@pytest.mark.long
def test_array_record_files_in_a_bucket_are_read_like_local_ones(store: Store, staging: Path, tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "source", splits={"train": [[demo_episode(6)]]}, kind="array_record")
    bucket = store.new_bucket()
    upload_tree(dataset.path, f"{bucket}/rlds/demo/1.0.0")
    for name, source in (("near", str(dataset.root)), ("far", f"{bucket}/rlds")):
        assert main(arguments(dataset, source, str(tmp_path / name), "--staging", str(staging))) == 0
    assert_same(files(tmp_path / "far"), files(tmp_path / "near"))
    assert list(staging.iterdir()) == []


@pytest.mark.long
def test_a_lost_table_a_lost_shard_and_a_repaired_source_are_made_again_alone(
    store: Store, dataset: RldsDataset, local: Files, staging: Path, tmp_path: Path
) -> None:
    bucket = store.new_bucket()
    source = Path(shutil.copytree(dataset.root, tmp_path / "source"))
    broken = RldsDataset(source, "demo").shard("train", 0, count=6)
    complete_bytes = broken.read_bytes()
    broken.write_bytes(complete_bytes[:-50])
    command = arguments(dataset, str(source), f"{bucket}/oxe", "--staging", str(staging))
    assert main(command) == EXIT_DAMAGED
    folder = StoreFolder(f"{bucket}/oxe/demo/1.0.0")
    before = versions(f"{bucket}/oxe")
    (folder / "val").remove(["records.arrow", "val-00001-of-00003.arrayrecord"])
    broken.write_bytes(complete_bytes)
    assert main(command) == EXIT_DAMAGED
    assert_same(objects(f"{bucket}/oxe"), local)
    after = versions(f"{bucket}/oxe")
    kept = {f"demo/1.0.0/train/train-{shard:05d}-of-00006.arrayrecord" for shard in range(1, 6)}
    assert {name for name in after if after[name] == before.get(name)} >= kept
    assert list(staging.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("workers", [("--num-workers", "2"), ("--runner=DaskRunner",)], ids=["two", "dask"])
def test_a_conversion_that_is_killed_goes_on_where_it_stopped(
    store: Store, large: RldsDataset, staging: Path, tmp_path: Path, workers: tuple[str, ...]
) -> None:
    bucket = store.new_bucket()
    upload_tree(large.path, f"{bucket}/rlds/demo/1.0.0")
    options = ("--staging", str(staging), "--image-size", "768", *workers)
    command = arguments(large, f"{bucket}/rlds", f"{bucket}/oxe", *options)
    journal = StoreFolder(f"{bucket}/oxe/demo/1.0.0/{FOLDER}")

    def finished() -> int:
        return sum(name.endswith(".status.json") for name in journal.sizes())

    with start(*command) as running:
        assert wait_until(lambda: finished() >= 3 or running.process.poll() is not None, seconds=120, poll=0.1)
        running.kill()
        assert wait_until(lambda: not running.processes(), seconds=10)
    before = versions(f"{bucket}/oxe/demo/1.0.0/train")
    done = {name.removesuffix(".status.json") for name in journal.sizes() if name.endswith(".status.json")}
    assert 3 <= len(done) < 16
    assert MANIFEST not in objects(f"{bucket}/oxe")

    result = run(*command)
    assert result.code == 0, result.err
    assert f"{16 - len(done)}/{16 - len(done)} shards" in result.err
    after = versions(f"{bucket}/oxe/demo/1.0.0/train")
    kept = [name for name in before if name.split(".")[0] in done]
    assert len(kept) == len(done)
    assert [name for name in kept if after[name] != before[name]] == []
    assert main(arguments(large, str(large.root), str(tmp_path / "out"), "--image-size", "768")) == 0
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert_same(
        objects(f"{bucket}/oxe"), {str(path.relative_to(tmp_path / "out")): path.read_bytes() for path in written}
    )
    assert list(staging.iterdir()) == []


def test_a_bucket_that_is_not_there_is_refused(
    store: Store, dataset: RldsDataset, staging: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = f"{store.scheme}://nowhere-at-all"
    for source, output in ((nowhere, "out"), (str(dataset.root), f"{nowhere}/oxe")):
        assert main(arguments(dataset, source, output, "--staging", str(staging))) == EXIT_USAGE
        assert f"no such bucket: {nowhere}; check its name" in capsys.readouterr().err
    assert list(staging.iterdir()) == []


def test_a_store_that_is_down_is_said_before_work_begins(
    dataset: RldsDataset, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address, began = f"http://127.0.0.1:{free_port()}", time.monotonic()
    for name, value in environment_of("s3", address).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(RemoteFolder, "deadline_s", 0.2)
    open_store.cache_clear()
    assert main(arguments(dataset, str(dataset.root), "s3://bucket/oxe")) == EXIT_FAILED
    assert f"s3://bucket/oxe: cannot be listed: no answer from {address}; check" in capsys.readouterr().err
    assert time.monotonic() - began < 60


def test_a_full_disk_names_the_staging_folder(
    store: Store, dataset: RldsDataset, staging: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(staging)]
    if subprocess.run(mount, capture_output=True, timeout=60).returncode:
        pytest.skip("no right to mount a small disk")
    bucket = store.new_bucket()
    try:
        code = main(arguments(dataset, str(dataset.root), bucket, "--staging", str(staging)))
        assert list(staging.iterdir()) == []
    finally:
        subprocess.run(["umount", staging], check=True)
    assert code == EXIT_FAILED
    assert f"error: {staging}: the disk is full; make room and run the same command again" in capsys.readouterr().err
    journal = {name for name in objects(bucket) if not name.endswith(".failure.json")}
    assert journal == {f"demo/1.0.0/{FOLDER}/parameters.json"}


def without_credentials(store: Store, dataset: RldsDataset, bucket: str) -> Result:
    command = arguments(dataset, str(dataset.root), f"{bucket}/oxe")
    if store.scheme == "s3":
        nothing: dict[str, str | None] = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None, "HOME": "/nowhere"}
        return run(*command, environment=nothing)
    with proxy(store, lambda *_: 401) as environment:
        return run(*command, environment=environment)


@pytest.mark.long
def test_missing_credentials_are_one_error(store: Store, dataset: RldsDataset) -> None:
    result = without_credentials(store, dataset, store.new_bucket())
    assert result.code == EXIT_USAGE
    message = "no credentials were found" if store.scheme == "s3" else "cannot be listed: no credentials that are valid"
    assert message in result.error()


@pytest.mark.slow
def test_what_the_store_changed_on_the_way_is_found_and_not_left_there(
    store: Store, dataset: RldsDataset, staging: Path
) -> None:
    bucket = store.new_bucket()

    def flip(method: str, path: str, body: bytes) -> bytes | int:
        spot = body.rfind(b"ARROW1")
        expected = method in ("PUT", "POST") and "records.arrow" in path + str(body[:400]) and spot > 0
        return body[: spot - 20] + bytes([body[spot - 20] ^ 1]) + body[spot - 19 :] if expected else body

    with proxy(store, flip) as environment:
        result = run(*arguments(dataset, str(dataset.root), bucket, "--staging", str(staging)), environment=environment)
    assert result.code == EXIT_FAILED
    assert "records.arrow" in result.error()
    assert not [name for name in objects(bucket) if name.endswith(("records.arrow", ".status.json", "dataset.json"))]
    assert list(staging.iterdir()) == []


def test_no_other_kind_of_address_is_taken(dataset: RldsDataset, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(dataset, str(dataset.root), "hdfs://name/oxe")) == EXIT_USAGE
    assert "hdfs://name/oxe: expected a folder, s3://BUCKET/... or gs://BUCKET/..." in capsys.readouterr().err


@pytest.mark.long
def test_shards_that_are_missing_in_the_store_are_named_with_their_failures(
    store: Store, dataset: RldsDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    output = f"{store.new_bucket()}/oxe"
    command = arguments(dataset, str(dataset.root), output)
    assert main([*command, "--on-error", "fail", "--task-count", "9", "--task-index", "2"]) == EXIT_FAILED
    failed = Result(EXIT_FAILED, *capsys.readouterr()).error()
    assert main(["finalize", *command]) == EXIT_FAILED
    result = Result(EXIT_FAILED, *capsys.readouterr())
    assert "demo (9 of 9 shards)" in result.error()
    assert failed.removeprefix("error: ") in result.out
    assert main(command) == EXIT_DAMAGED
    assert main(["finalize", *command]) == EXIT_DAMAGED
    assert not [name for name in objects(output) if FOLDER in name]
