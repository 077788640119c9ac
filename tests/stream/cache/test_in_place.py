"""A root that is read in place: its batches, states and files are those of the local root, whatever the store does."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from convert.storage.object_store import StoreFolder
from pairstream.browse.browsed_root import BrowsedRoot
from pairstream.browse.static import write_static
from pairstream.fetch import main as fetch
from stream import Select, add_labels, digest, load_loader, make_loader, remove_labels, samples
from stream.base.errors import ArgumentError, FormatError, RecordError, StreamError
from stream.cache.quota import CacheQuota
from stream.format.names import FETCHED_NAME, MANIFEST_NAME
from stream.storage import object_reads, object_stores
from stream.storage.cache_folder import cached_root
from stream.storage.remote import RemoteError
from tests.documentation.blocks import python_blocks
from tests.fixtures.command import TIMEOUT, run, start, wait_until
from tests.fixtures.object_stores import Store, object_store, seen_through, unreliable, upload_tree, web_server

BATCH, STEPS = 12, 25
OPTIONS: dict[str, Any] = {"batch_size": BATCH, "seed": 5, "num_steps": STEPS}


def batches(root: object, cache: Path | str | None = None, **more: Any) -> list[str]:
    return [digest(batch) for batch in make_loader(str(root), "demo", **OPTIONS, **more, cache=cache)]


@pytest.fixture(scope="module")
def expected(small_root: Path) -> list[str]:
    return batches(small_root)


@pytest.fixture(params=["s3", pytest.param("gs", marks=pytest.mark.long), "http"])
def flaky(request: pytest.FixtureRequest, small_root: Path, tmp_path: Path) -> Iterator[str]:
    """Return the address of the root in a store that is slow, fails and stalls."""
    if request.param == "http":
        with web_server(small_root, unreliable()) as url:
            yield url
        return
    with object_store(request.param, tmp_path / "log") as store:
        url = f"{store.new_bucket()}/oxe"
        upload_tree(small_root, url)
        with seen_through(store, unreliable()):
            yield url


def test_batches_states_and_files_are_those_of_the_local_root(
    flaky: str, small_root: Path, cache: Path, expected: list[str], tmp_path: Path
) -> None:
    far = make_loader(flaky, "demo", **OPTIONS, num_workers=2, cache=f"{cache}:1GB")
    assert [digest(batch) for batch in far] == expected
    assert far.stats()["requests"] > 0
    near = make_loader(small_root, "demo", **OPTIONS)
    assert far.fingerprint == near.fingerprint and far.state_at(7) == near.state_at(7)
    assert far.describe(3) == near.describe(3) and far.describe() == near.describe()
    assert (far.episode("demo", 3).frames == near.episode("demo", 3).frames).all()
    far.save(tmp_path / "loader.json")
    reloaded = load_loader(tmp_path / "loader.json", cache=cache)
    assert digest(reloaded.batch_at(9)) == expected[9]
    resumed = iter(reloaded)
    resumed.set_state(near.state_at(11))
    assert digest(next(resumed)) == expected[11]
    resumed.close()
    moved = load_loader(tmp_path / "loader.json", root=small_root)
    assert digest(moved.batch_at(9)) == expected[9]
    sample = samples(flaky, "demo", seed=5, cache=cache)[BATCH]
    assert (sample["frames"] == near.batch_at(1)["frames"][0]).all()
    if not flaky.startswith("gs"):
        options = ("--loader", str(tmp_path / "loader.json"), "--step", "9", "--digest", "--cache", str(cache))
        assert run(*options, module="pairstream replay").out == f"9 {expected[9]}\n"


def test_the_second_epoch_asks_for_nothing_and_the_index_comes_once(
    bucket: str, cache: Path, expected: list[str]
) -> None:
    loader = make_loader(bucket, "demo", **OPTIONS, cache=cache)
    before = {path: path.stat().st_ino for path in cache.rglob("*.arrow")}
    list(loader)
    asked = loader.stats()["requests"]
    assert [digest(batch) for batch in loader] == expected
    assert loader.stats()["requests"] == asked > 0
    make_loader(bucket, "demo", **OPTIONS, cache=cache)
    assert before == {path: path.stat().st_ino for path in cache.rglob("*.arrow")} != {}
    assert (cache / "demo/1.0.0" / FETCHED_NAME).exists()


@pytest.mark.parametrize("num_workers", [0, pytest.param(3, marks=pytest.mark.long)])
def test_blocks_are_asked_for_once_whoever_needs_them(
    num_workers: int, bucket: str, cache: Path, small_root: Path
) -> None:
    more = {"shuffle": "block:8", "num_workers": num_workers}
    loader = make_loader(bucket, "demo", **{**OPTIONS, **more}, cache=cache)
    assert [digest(batch) for batch in loader] == batches(small_root, shuffle="block:8")
    stats = loader.stats()
    records = sum(path.stat().st_size for path in small_root.rglob("train*.arrayrecord"))
    assert stats["remote_bytes"] <= records
    assert 0 < stats["requests"] < loader.sizes["demo"] / 4


def test_labels_come_with_the_index_and_new_ones_with_the_next_loader(
    s3: Store, small_root: Path, cache: Path, tmp_path: Path
) -> None:
    root, url = Path(shutil.copytree(small_root, tmp_path / "labelled")), f"{s3.new_bucket()}/oxe"
    upload_tree(root, url)
    make_loader(url, "demo", **OPTIONS, cache=cache)
    (tmp_path / "value.csv").write_text("episode,value\n" + "".join(f"{number},{number}.5\n" for number in range(12)))
    add_labels(root, "demo", tmp_path / "value.csv", split="train")
    upload_tree(root, url)
    more: dict[str, Any] = {"columns": ["value"], "select": Select(where=[("value", ">", 3)])}
    far, near = (
        make_loader(str(source), "demo", **OPTIONS, **more, cache=at) for source, at in ((url, cache), (root, None))
    )
    assert far.fingerprint == near.fingerprint
    assert [digest(batch) for batch in far] == [digest(batch) for batch in near]
    remove_labels(root, "demo", "value", split="train")
    upload_tree(root, url)
    with pytest.raises(ArgumentError, match="'value'"):
        make_loader(url, "demo", **OPTIONS, **more, cache=cache)


def test_the_line_of_the_documentation_reads_a_bucket(bucket: str, cache: Path) -> None:
    code = next(code for code in python_blocks() if "/scratch/oxe:200GB" in code)
    for documented, actual in (("s3://BUCKET/oxe", bucket), ("oxe29", "demo"), ("/scratch/oxe", str(cache))):
        code = code.replace(documented, actual)
    names: dict[str, Any] = {"make_loader": make_loader}
    exec(code, names)
    assert len(names["loader"].batch_at(0)["sample"]) == 64


def test_ranks_share_a_cache_and_give_the_global_batch(bucket: str, cache: Path, small_root: Path) -> None:
    ranks = [make_loader(bucket, "demo", **OPTIONS, rank=rank, world_size=3, cache=cache) for rank in range(3)]
    iterators = [iter(rank) for rank in ranks]
    near = make_loader(small_root, "demo", **OPTIONS)
    for step in range(4):
        rank_batches = [next(iterator) for iterator in iterators]
        assert [s for batch in rank_batches for s in batch["sample"]] == near.batch_at(step)["sample"].tolist()
        assert (rank_batches[1]["frames"] == near.batch_at(step)["frames"][4:8]).all()
    for iterator in iterators:
        iterator.close()


@pytest.mark.parametrize("damage", ["flipped", "zeroed", "truncated", "deleted"])
def test_damage_to_the_cache_while_training_changes_no_batch(
    damage: str, bucket: str, cache: Path, expected: list[str]
) -> None:
    loader = make_loader(bucket, "demo", **OPTIONS, num_workers=1, cache=cache)
    digests = []
    for step, batch in enumerate(loader):
        digests.append(digest(batch))
        for path in cache.rglob("cached/*.arrayrecord") if step in (3, 11) else ():
            content = path.read_bytes()
            if damage == "deleted":
                path.unlink()
            elif damage == "truncated":
                os.truncate(path, len(content) // 3)
            else:
                changed = bytes(len(content)) if damage == "zeroed" else bytes(byte ^ 0x55 for byte in content)
                with path.open("r+b") as file:
                    file.write(changed)
    assert digests == expected
    assert batches(bucket, cache) == expected


@pytest.mark.long
def test_any_kill_leaves_the_cache_sound(bucket: str, cache: Path, expected: list[str], tmp_path: Path) -> None:
    arguments = f"{bucket!r}, 'demo', batch_size={BATCH}, seed=5, num_workers=1, cache={str(cache)!r}"
    code = f"from stream import make_loader\nfor batch in make_loader({arguments}): pass\n"
    (tmp_path / "train_far.py").write_text(code)
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    draw = random.Random(0)
    for _ in range(5):
        with start(module="train_far", environment={"PYTHONPATH": path}) as running:
            assert wait_until(lambda: cache.exists(), seconds=TIMEOUT)
            time.sleep(draw.random() * 1.5)
            running.kill()
        assert batches(bucket, cache) == expected


@pytest.mark.long
def test_two_processes_fill_one_cache_at_the_same_time(bucket: str, cache: Path, expected: list[str]) -> None:
    make_loader(bucket, "demo", **OPTIONS, cache=cache).save(cache.parent / "loader.json")
    saved = str(cache.parent / "loader.json")
    options = ("--loader", saved, "--range", f"0:{STEPS}", "--digest", "--cache", f"{cache}2")
    with start(*options, module="pairstream replay") as first, start(*options, module="pairstream replay") as second:
        results = [first.wait(), second.wait()]
    assert [result.out.split()[1::2] for result in results] == [expected, expected]


@pytest.fixture(params=["s3", "http"])
def sound(request: pytest.FixtureRequest, small_root: Path) -> Iterator[str]:
    """Return the address of the root in a store that works."""
    if request.param == "s3":
        yield request.getfixturevalue("bucket")
        return
    with web_server(small_root) as url:
        yield url


@pytest.mark.long
def test_what_was_fetched_is_read_without_requests_and_does_not_leave(
    sound: str, cache: Path, expected: list[str], small_root: Path
) -> None:
    assert fetch([sound, str(cache), "--mixture", "demo", "--split", "train[:4]"]) == 0
    inodes = {path: path.stat().st_ino for path in cache.rglob("train*.arrayrecord")}
    part = make_loader(sound, "demo", **OPTIONS, split="train[:4]", cache=f"{cache}:50KB")
    assert [digest(batch) for batch in part] == batches(small_root, split="train[:4]")
    assert part.stats()["requests"] == 0
    assert batches(sound, f"{cache}:50KB") == expected
    CacheQuota(cache, 1).free_space(1)
    assert {path: path.stat().st_ino for path in inodes} == inodes
    assert [digest(batch) for batch in part] == batches(small_root, split="train[:4]")
    assert part.stats()["requests"] == 0


def test_fetching_into_the_cache_completes_it(sound: str, cache: Path, expected: list[str]) -> None:
    assert batches(sound, cache) == expected
    sparse = list(cache.rglob("cached/*.arrayrecord"))
    assert sparse
    with pytest.raises(ArgumentError, match="not fetched yet"):
        make_loader(cache, "demo", **OPTIONS)
    assert fetch([sound, str(cache), "--mixture", "demo"]) == 0
    assert not any(path.exists() for path in sparse)
    loader = make_loader(sound, "demo", **OPTIONS, cache=cache)
    assert [digest(batch) for batch in loader] == expected == batches(cache)
    assert loader.stats()["requests"] == 0
    for path in cache.rglob("train*.arrayrecord"):
        path.write_bytes(bytes(path.stat().st_size))
    assert batches(sound, cache) == expected


@pytest.mark.parametrize("location", ["the cache", "the source"])
def test_an_index_of_another_version_is_one_error(
    location: str, s3: Store, small_root: Path, cache: Path, tmp_path: Path
) -> None:
    root, url = Path(shutil.copytree(small_root, tmp_path / "root")), f"{s3.new_bucket()}/oxe"
    upload_tree(root, url)
    make_loader(url, "demo", **OPTIONS, cache=cache)
    changed = (cache if location == "the cache" else root) / f"demo/1.0.0/{MANIFEST_NAME}"
    content = changed.read_text()
    assert '"format_version": 2' in content
    changed.write_text(content.replace('"format_version": 2', '"format_version": 1'))
    upload_tree(root, url)
    context, remedy = (cache, f"remove {cache}") if location == "the cache" else (url, "convert it again")
    with pytest.raises(
        (StreamError, FormatError), match=f"{context}/demo/1.0.0/{MANIFEST_NAME}: format version 1, .* 2; {remedy}"
    ):
        make_loader(url, "demo", **OPTIONS, cache=cache)
    shutil.rmtree(cache)
    changed.parent.mkdir(parents=True, exist_ok=True)
    if location == "the source":
        changed.write_text(content)
        upload_tree(root, url)
    assert batches(url, cache) == batches(small_root)


@pytest.mark.parametrize("change", ["content", "shorter", "missing"])
def test_a_shard_that_was_replaced_is_one_error(
    change: str, s3: Store, small_root: Path, cache: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    url = f"{s3.new_bucket()}/oxe"
    upload_tree(small_root, url)
    loader = make_loader(url, "demo", **OPTIONS, cache=cache)
    folder, name = StoreFolder(f"{url}/demo/1.0.0/train"), "train-00002-of-00006.arrayrecord"
    content = (small_root / "demo/1.0.0/train" / name).read_bytes()
    copy.write_bytes(bytes(b ^ 1 for b in content) if change == "content" else content[:100])
    folder.remove([name]) if change == "missing" else folder.upload(copy, name)
    with pytest.raises(RecordError, match=rf"record \d+.*{url}/demo/1.0.0/train/{name}.*(replaced|no such object)"):
        list(loader)
    (tmp_path / "same").write_bytes(content)
    folder.upload(tmp_path / "same", name)
    assert [digest(batch) for batch in make_loader(url, "demo", **OPTIONS, cache=cache)] == batches(small_root)


def test_a_store_that_does_not_answer_is_one_error_and_the_state_goes_on(
    small_root: Path, cache: Path, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_reads, "DEADLINE_S", 4)
    object_stores.open_store.cache_clear()
    is_down = False
    with web_server(small_root, lambda method, path, body: 503 if is_down and "arrayr" in path else body) as url:
        loader = make_loader(url, "demo", **{**OPTIONS, "num_workers": 0}, cache=cache)
        iterator = iter(loader)
        digests = [digest(next(iterator))]
        is_down = True
        for path in cache.rglob("cached/*.arrayrecord"):
            os.truncate(path, 0)
        with pytest.raises(RemoteError) as caught:
            for batch in iterator:
                digests.append(digest(batch))
        text = str(caught.value)
        assert f"{url}/demo/1.0.0/train/train-0000" in text and "record " in text and "503" in text
        assert "\n" not in text
        is_down = False
        iterator.set_state(iterator.get_state())
        digests += [digest(batch) for batch in iterator]
    assert digests == expected


@pytest.mark.long
def test_a_worker_says_the_same_in_one_line(s3: Store, small_root: Path, cache: Path) -> None:
    url = f"{s3.new_bucket()}/oxe"
    upload_tree(small_root, url)
    with seen_through(s3, lambda method, path, body: 403 if "arrayr" in path else body):
        loader = make_loader(url, "demo", **OPTIONS, num_workers=1, cache=cache)
        with pytest.raises(RemoteError, match=f"^step 0: worker 0 .*{url}.*not allowed with these creden") as caught:
            next(iter(loader))
    assert caught.value.refused


def test_a_wrong_bucket_name_or_permission_is_said_when_the_loader_is_made(s3: Store, bucket: str, cache: Path) -> None:
    nowhere = "s3://nowhere-at-all"
    for root, mixture, text in (
        (f"{nowhere}/oxe", "demo", f"no such bucket: {nowhere}"),
        (f"{bucket}/nothing", "demo", "holds no complete conversion"),
        (bucket, "dmo", "no mixture or dataset 'dmo'"),
    ):
        with pytest.raises(StreamError, match=text):
            make_loader(root, mixture, **OPTIONS, cache=cache)
        assert not cache.exists()
    message = f"{bucket}.*not allowed with these credentials"
    with seen_through(s3, lambda *_: 403), pytest.raises(RemoteError, match=message):
        make_loader(bucket, "demo", **OPTIONS, cache=cache)


def test_the_doctor_of_the_browser_names_the_bucket(bucket: str, cache: Path, tmp_path: Path) -> None:
    opened = BrowsedRoot(cached_root(bucket, cache), marks=tmp_path / "marks.json")
    with pytest.raises(StreamError, match=f"^pairstream doctor: {bucket}: only local folders can be checked"):
        write_static(opened, tmp_path / "report", episodes=None, doctor=True, most_bytes=1000)
    assert not (tmp_path / "report").exists()


def test_a_web_server_without_a_list_is_told_how_to_make_one(tmp_path: Path, cache: Path) -> None:
    message = "/info.json: no list .*pairstream info ROOT --json > ROOT/info.json"
    with web_server(tmp_path) as url, pytest.raises(RemoteError, match=url + message):
        make_loader(url, "demo", **OPTIONS, cache=cache)


@pytest.mark.parametrize(
    ("root", "cache", "text"),
    [
        ("hf://datasets/org/oxe@main?x", None, r"hf://...: has a name, key or query in it"),
        ("s3://bucket/oxe", "/tmp/x:lots", r"cache='/tmp/x:lots'; expected a local folder, with a bound"),
        ("s3://bucket/oxe", "s3://other:1GB", r"cache='s3://other:1GB'; expected a local folder"),
        ("s3://bucket/oxe", "/tmp/x:0GB", r"cache='/tmp/x:0GB'; expected"),
        ("https://user:word@host/oxe", "/tmp/x", r"https://...: has a name, key or query in it"),
        ("s3://bucket/oxe", "/dev/null/x", r"cache=/dev/null/x: cannot be written: Not a directory"),
    ],
)
def test_wrong_arguments_are_one_sentence(root: str, cache: str | None, text: str, bucket: str) -> None:
    root = bucket if "dev" in str(cache) else root
    with pytest.raises(ArgumentError, match=text) as caught:
        make_loader(root, "demo", **OPTIONS, cache=cache)
    assert "word" not in str(caught.value)


def test_the_cache_of_another_conversion_is_refused(
    s3: Store, bucket: str, oxe_like: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(cache.parent))
    make_loader(bucket, "demo", **OPTIONS, cache="~/cache:1GB")
    assert (cache / "demo").is_dir()
    url = f"{s3.new_bucket()}/oxe"
    upload_tree(oxe_like, url)
    with pytest.raises(ArgumentError, match=rf"{cache}/demo/1.0.0: holds another conversion than {url}"):
        make_loader(url, "demo", **OPTIONS, cache=cache)


def test_no_credential_is_kept(bucket: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret-word")
    loader = make_loader(bucket, "demo", **OPTIONS, num_workers=1, cache=cache)
    next(iter(loader))
    loader.save(tmp_path / "loader.json")
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    kept.append(cloudpickle.dumps(loader.rank_plan._setup()))
    assert not any(b"very-secret-word" in content for content in kept)


def test_a_forked_process_is_told_to_be_spawned(bucket: str, cache: Path) -> None:
    loader = make_loader(bucket, "demo", **OPTIONS, cache=cache)
    loader.batch_at(0)
    for path in cache.rglob("cached/*.arrayrecord"):
        os.truncate(path, 0)
    reader, writer = os.pipe()
    if not os.fork():
        try:
            loader.batch_at(1)
        except StreamError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        assert b"before this process was forked" in file.read()
