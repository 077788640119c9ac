"""``python -m stream.fetch``: copy what a mixture needs from an object store, or from a folder, to this machine.

Of a split that the mixture touches, the whole index and the ArrayRecord files with its episodes are copied. The order
makes it safe to stop at any time: a file gets its name when it is complete and checked; then ``fetched.json`` names
the shards; the manifest comes last. Fetching again goes on, and adds to what is there.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich import filesize

from stream.arguments import interrupt_on_kill
from stream.catalog import Catalog, Dataset
from stream.download import (
    Download,
    FetchError,
    check_source,
    download,
    open_source,
    remove_leftovers,
)
from stream.errors import ArgumentError, StreamError
from stream.fetched import PARTIAL, Fetched, read_fetched, write_fetched
from stream.format import (
    FETCHED_NAME,
    MANIFEST_NAME,
    QUARANTINE_NAME,
    FormatError,
    shard_file,
    split_of,
    table_file,
)
from stream.manifest import FileEntry, Manifest, ShardEntry, parse_manifest, read_manifest
from stream.mixture import resolve_mixture
from stream.remote import Folder, RemoteError, is_remote
from stream.splits import SplitError, resolve_split
from stream.views import touched_shards
from stream.whole_file import write_whole

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_EPILOG = """\
The fetched folder is a root like the one it came from: samples, batches and loader.json are the same. A split that
needs shards that were not fetched is refused. Interrupted, the same command goes on; files that are there are not
fetched again. After `python -m convert.reindex` on the source the same command brings the new index alone.

exit codes:
  0    what was asked for is there
  1    failed; what was fetched stays, and the same command goes on
  2    a wrong name, path, option, bucket or credential; nothing was fetched
  130  interrupted; the same command goes on

examples:
  python -m stream.fetch s3://bucket/oxe /local/oxe --mixture oxe29
  python -m stream.fetch gs://bucket/oxe /local/oxe --mixture bridge --split 'train[:10%]' --split val
  python -m stream.fetch /nfs/oxe /local/oxe --mixture my_mixture.yaml --split train --jobs 16
"""


class RemoteCatalog(Catalog):
    """Datasets of a root that is copied; the bytes of each manifest are kept too."""

    def __init__(self, source: Folder) -> None:
        self._source = source
        self.where = str(source)
        self.root = Path(self.where)
        self._open: dict[str, Dataset] = {}
        self.contents: dict[tuple[str, str], bytes] = {}

    def _read(self, name: str, version: str) -> Dataset:
        folder = self._source / name / version
        if folder.size(FETCHED_NAME) is not None:
            raise FetchError(f"{folder}: was fetched in part itself; give the root that it came from")
        content = folder.read(MANIFEST_NAME)
        self.contents[name, version] = content
        manifest = parse_manifest(content, where=f"{folder}/{MANIFEST_NAME}")
        # What is to be brought is looked up in the manifest, so it keeps its shards here.
        return replace(Dataset.of(name, version, self.root / name / version, manifest), manifest=manifest)


@dataclass(frozen=True, kw_only=True)
class Order:
    """The files to copy of one dataset.

    Attributes:
        dataset: The dataset, with its complete manifest.
        folder: Source.
        target: Folder to copy to.
        content: Bytes of the manifest.
        shards: Shards that the mixture needs, of all splits.
        known: Names of the shards that were fetched before, None if the dataset is complete and up to date.
        reindexed: Whether the index was made anew since the shards were fetched.
    """

    dataset: Dataset
    folder: Folder
    target: Path
    content: bytes
    shards: tuple[ShardEntry, ...]
    known: tuple[str, ...] | None = ()
    reindexed: bool = False

    @property
    def missing(self) -> list[Download]:
        """The files that are to be copied."""
        touched = {split_of(name) for name in (*(shard.name for shard in self.shards), *(self.known or ()))}
        tables = [
            self._download(split, table_file(kind), table)
            for split, entry in self.dataset.manifest.splits.items()
            # A split without shards has no shard that would bring its index.
            if split in touched or not entry.shards
            for kind, table in entry.index.items()
        ]
        shards = [self._download(split_of(shard.name), shard_file(shard.name), shard.file) for shard in self.shards]
        return [
            *(file for file in tables if self.reindexed or not file.is_there()),
            *(file for file in shards if not file.is_there()),
        ]

    def _download(self, split: str, name: str, entry: FileEntry) -> Download:
        return Download(folder=self.folder / split, target=self.target / split / name, entry=entry)


def fetch(
    remote: str, local: str | Path, mixture: Any, *, splits: Sequence[str] = ("train",), jobs: int = 8
) -> dict[str, Any]:
    """Copy what a mixture needs.

    Args:
        remote: Converted root: ``s3://...``, ``gs://...``, or a folder.
        local: Folder to copy to, which ``make_loader`` then opens.
        mixture: Mixture as ``make_loader`` takes it.
        splits: One or more splits, each as ``split`` of ``make_loader``.
        jobs: Files that are copied at the same time.

    Returns:
        The counts of what was copied and of what is present, a small JSON.

    Raises:
        ArgumentError, FetchError, FormatError, RemoteError, OSError: One clear reason. Complete files stay.
    """
    local = Path(local)
    source = open_source(remote)
    orders = _order(RemoteCatalog(source), source, mixture, splits, local)
    try:
        local.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"{local}: cannot be made: {error.strerror}; choose another folder") from None
    with _alone(local):
        orders = [_beside_fetched(order) for order in orders]
        for order in orders:
            for folder in (order.target, *(order.target / split for split in order.dataset.manifest.splits)):
                remove_leftovers(folder)
        missing = [file for order in orders for file in order.missing]
        check_source(missing)
        size = sum(file.entry.bytes for file in missing)
        _check_room(local, size)
        for order in orders:
            _begin(order, str(source))
        for folder in {file.target.parent for file in missing}:
            folder.mkdir(parents=True, exist_ok=True)
        download(missing, jobs=jobs)
        for order in orders:
            _finish(order, str(source))
    return {
        "remote": remote,
        "local": str(local),
        "files_fetched": len(missing),
        "bytes_fetched": size,
        "datasets": [_summary(order) for order in orders],
    }


def _order(catalog: RemoteCatalog, source: Folder, mixture: Any, splits: Sequence[str], local: Path) -> list[Order]:
    """Return the shards that the splits of a mixture touch, by dataset; only manifests are read."""
    wanted: dict[tuple[str, str], set[str]] = {}
    datasets: dict[tuple[str, str], Dataset] = {}
    for split in splits:
        for member in resolve_mixture(mixture, split, catalog):
            dataset = catalog.open(member.dataset)
            try:
                ranges = resolve_split(member.split, dataset.shard_lengths)
            except SplitError as error:
                raise ArgumentError(f"dataset {dataset.name}: {error}") from None
            key = dataset.name, dataset.version
            datasets[key] = dataset
            chosen = wanted.setdefault(key, set())
            for episodes in ranges:
                chosen.update(touched_shards(episodes, dataset))
    orders = []
    for key, stems in wanted.items():
        dataset = datasets[key]
        every = (shard for entry in dataset.manifest.splits.values() for shard in entry.shards)
        orders.append(
            Order(
                dataset=dataset,
                folder=source / dataset.name / dataset.version,
                target=local / dataset.name / dataset.version,
                content=catalog.contents[key],
                shards=tuple(shard for shard in every if shard.name in stems),
            )
        )
    return orders


@contextlib.contextmanager
def _alone(local: Path) -> Iterator[None]:
    """Wait until no other process of this machine fetches into a folder; the kernel ends the lock with the process."""
    held = os.open(local, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # A file system without locks is used without.
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"waiting: another process fetches into {local}", file=sys.stderr)
                fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _beside_fetched(order: Order) -> Order:
    """Complete an order by what its target holds.

    Raises:
        ArgumentError: The target holds another conversion.
    """
    manifest = order.dataset.manifest
    fetched = read_fetched(order.target)
    old = read_manifest(order.target) if (order.target / MANIFEST_NAME).exists() else None
    data = old.checksum if old else fetched.data if fetched else manifest.checksum
    reindexed = data != manifest.checksum
    if reindexed and not (old and _same_shards(old, manifest)):
        raise ArgumentError(
            f"{order.target}: holds another conversion than {order.folder}; remove it, or choose another folder"
        )
    if fetched:
        return replace(order, known=fetched.shards, reindexed=reindexed)
    if not old:
        return order
    return replace(order, known=_shard_names(manifest) if reindexed else None, reindexed=reindexed)


def _same_shards(old: Manifest, new: Manifest) -> bool:
    """Return whether two manifests are of one conversion, between which at most the index was made anew."""
    shards = [{split: entry.shards for split, entry in manifest.splits.items()} for manifest in (old, new)]
    return shards[0] == shards[1] and (old.source, old.parameters) == (new.source, new.parameters)


def _shard_names(manifest: Manifest) -> tuple[str, ...]:
    return tuple(shard.name for entry in manifest.splits.values() for shard in entry.shards)


def _check_room(local: Path, size: int) -> None:
    free = shutil.disk_usage(local).free
    if size > free:
        raise FetchError(
            f"{local}: {filesize.decimal(size)} are to be fetched and {filesize.decimal(free)} are free; make room, or "
            "fetch a smaller split"
        )


def _begin(order: Order, source: str) -> None:
    """State the conversion that the files belong to, before the first of them is copied."""
    order.target.mkdir(parents=True, exist_ok=True)
    if order.known is not None:
        write_fetched(order.target, Fetched(source=source, data=order.dataset.manifest.checksum, shards=order.known))


def _finish(order: Order, source: str) -> None:
    manifest = order.dataset.manifest
    if order.known is None:
        return
    names = _shard_names(manifest)
    here = {*order.known, *(shard.name for shard in order.shards)}
    shards = tuple(name for name in names if name in here)
    write_fetched(order.target, Fetched(source=source, data=manifest.checksum, shards=shards))
    if manifest.quarantine is not None:
        content = order.folder.read(QUARANTINE_NAME)
        if hashlib.sha256(content).hexdigest() != manifest.quarantine.sha256:
            raise FetchError(f"{order.folder}/{QUARANTINE_NAME}: its SHA-256 is not that of its manifest")
        write_whole(order.target / QUARANTINE_NAME, content, durable=True, suffix=PARTIAL)
    write_whole(order.target / MANIFEST_NAME, order.content, durable=True, suffix=PARTIAL)
    if len(shards) == len(names):
        (order.target / FETCHED_NAME).unlink()


def _summary(order: Order) -> dict[str, Any]:
    manifest: Manifest = order.dataset.manifest
    fetched = read_fetched(order.target)
    total = sum(len(entry.shards) for entry in manifest.splits.values())
    return {
        "dataset": order.dataset.name,
        "version": order.dataset.version,
        "shards_needed": len(order.shards),
        "shards_here": total if fetched is None else len(fetched.shards),
        "shards": total,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parsed = _parser().parse_args(arguments)
    interrupt_on_kill()
    try:
        if parsed.jobs < 1:
            raise ArgumentError(f"--jobs {parsed.jobs}: expected 1 or more")
        if is_remote(parsed.local):
            raise ArgumentError(f"{parsed.local}: files are brought to a local folder")
        splits = tuple(dict.fromkeys(parsed.split or ["train"]))
        done = fetch(parsed.remote, parsed.local, parsed.mixture, splits=splits, jobs=parsed.jobs)
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on", file=sys.stderr)
        return EXIT_INTERRUPTED
    except (StreamError, FormatError, OSError) as error:
        text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.strerror else str(error)
        print(f"error: {text}", file=sys.stderr)
        refused = isinstance(error, ArgumentError) or (isinstance(error, RemoteError) and error.refused)
        return EXIT_USAGE if refused else EXIT_FAILED
    if parsed.json:
        print(json.dumps(done, indent=1))
        return 0
    for entry in done["datasets"]:
        print(
            f"{entry['dataset']} {entry['version']}: {entry['shards_needed']:,} shards needed, "
            f"{entry['shards_here']:,} of {entry['shards']:,} here"
        )
    print(
        f"{done['files_fetched']:,} files fetched, {filesize.decimal(done['bytes_fetched'])}; {done['local']} is ready"
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m stream.fetch",
        description="Bring the shards that a mixture needs to this machine, and check them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("remote", metavar="REMOTE", help="a converted root: s3://..., gs://..., or a folder")
    parser.add_argument("local", metavar="LOCAL", help="the folder to bring it to")
    parser.add_argument("--mixture", required=True, help="a mixture (oxe29), a dataset, or a YAML file")
    parser.add_argument(
        "--split", action="append", help="as make_loader takes it; may be given more than once (default: train)"
    )
    parser.add_argument("--jobs", type=int, default=8, help="files at the same time (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
