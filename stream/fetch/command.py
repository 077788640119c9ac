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

from stream.fetch.download import Download, FetchError, download
from stream.format.catalog import Catalog, Dataset
from stream.format.fetched import PARTIAL, Fetched, read_fetched, write_fetched
from stream.format.manifest import Manifest, parse_manifest, read_manifest
from stream.format.names import FETCHED_NAME, MANIFEST_NAME, QUARANTINE_NAME, shard_file, table_file
from stream.order.mixture import resolve_mixture
from stream.order.splits import SplitError, resolve_split
from stream.order.views import touched_shards
from stream.storage.arguments import Parser, interrupt_on_kill, run_command, whole
from stream.storage.atomic import write_whole
from stream.storage.errors import ArgumentError
from stream.storage.remote import Folder, LocalFolder, RemoteFolder, is_remote

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
        self.contents: dict[Path, bytes] = {}

    def _read(self, name: str, version: str) -> Dataset:
        folder = self._source / name / version
        if folder.size(FETCHED_NAME) is not None:
            raise FetchError(f"{folder}: was fetched in part itself; give the root that it came from")
        content = folder.read(MANIFEST_NAME)
        manifest = parse_manifest(content, where=f"{folder}/{MANIFEST_NAME}")
        dataset = Dataset.of(name, version, self.root / name / version, manifest)
        self.contents[dataset.folder] = content
        # What is to be brought is looked up in the manifest, so it keeps its shards here.
        return replace(dataset, manifest=manifest)


@dataclass(frozen=True, kw_only=True)
class Order:
    """What one dataset needs.

    Attributes:
        dataset: Dataset of the source, with its complete manifest.
        folder: Source.
        target: Folder to copy to.
        names: Names of all its shards, in order.
        needed: Names of the shards that the mixture needs.
        known: Names of the shards that were fetched before.
        files: Files that are missing at the target.
        done: Whether nothing is left to do.
    """

    dataset: Dataset
    folder: Folder
    target: Path
    names: tuple[str, ...]
    needed: frozenset[str]
    known: frozenset[str]
    files: tuple[Download, ...]
    done: bool

    def write_known(self, source: str, names: frozenset[str]) -> None:
        """Write which shards are at the target."""
        shards = tuple(name for name in self.names if name in names)
        write_fetched(self.target, Fetched(source=source, data=self.dataset.manifest.checksum, shards=shards))


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
    if is_remote(local):
        raise ArgumentError(f"{local}: files are brought to a local folder")
    local = Path(local)
    source = _open_source(remote)
    catalog = RemoteCatalog(source)
    needed = _needed_shards(catalog, mixture, splits)
    try:
        local.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"{local}: cannot be made: {error.strerror}; choose another folder") from None
    with _alone(local):
        orders = [_order(dataset, frozenset(names), source, local) for dataset, names in needed.values()]
        files = [file for order in orders for file in order.files]
        size = sum(file.entry.bytes for file in files)
        free = shutil.disk_usage(local).free
        if size > free:
            raise FetchError(
                f"{local}: {filesize.decimal(size)} are to be fetched and {filesize.decimal(free)} are free; make "
                "room, or fetch a smaller split"
            )
        changing = [order for order in orders if not order.done]
        for order in changing:
            # The conversion that the files belong to is stated before the first of them is copied.
            order.target.mkdir(parents=True, exist_ok=True)
            order.write_known(str(source), order.known)
        download(files, jobs=jobs)
        for order in changing:
            _finish(order, str(source), catalog.contents[order.dataset.folder])
    return {
        "remote": remote,
        "local": str(local),
        "files_fetched": len(files),
        "bytes_fetched": size,
        "datasets": [
            {
                "dataset": order.dataset.name,
                "version": order.dataset.version,
                "shards_needed": len(order.needed),
                "shards_here": len(order.known | order.needed),
                "shards": len(order.names),
            }
            for order in orders
        ],
    }


def _open_source(root: str) -> Folder:
    if is_remote(root):
        remote = RemoteFolder(root)
        remote.check()
        return remote
    if not Path(root).is_dir():
        raise FetchError(f"{root}: no such folder; expected a root that was converted, a folder, s3:// or gs://")
    return LocalFolder(Path(root))


def _needed_shards(catalog: RemoteCatalog, mixture: Any, splits: Sequence[str]) -> dict[Path, tuple[Dataset, set[str]]]:
    """Return the datasets of a mixture with the shards that the splits touch, by folder; only manifests are read."""
    needed: dict[Path, tuple[Dataset, set[str]]] = {}
    for split in splits:
        for member in resolve_mixture(mixture, split, catalog):
            dataset = catalog.open(member.dataset)
            try:
                ranges = resolve_split(member.split, dataset.shard_lengths)
            except SplitError as error:
                raise ArgumentError(f"dataset {dataset.name}: {error}") from None
            _, names = needed.setdefault(dataset.folder, (dataset, set()))
            for episodes in ranges:
                names.update(touched_shards(episodes, dataset))
    return needed


def _order(dataset: Dataset, needed: frozenset[str], source: Folder, local: Path) -> Order:
    """Return what is missing of a dataset, and remove what a fetch that was killed left half-written.

    Raises:
        ArgumentError: The target holds another conversion.
    """
    folder, target = source / dataset.name / dataset.version, local / dataset.name / dataset.version
    manifest = dataset.manifest
    names = tuple(shard.name for entry in manifest.splits.values() for shard in entry.shards)
    fetched = read_fetched(target)
    old = read_manifest(target) if (target / MANIFEST_NAME).exists() else None
    data = old.checksum if old else fetched.data if fetched else manifest.checksum
    reindexed = data != manifest.checksum
    if reindexed and not (old and _same_shards(old, manifest)):
        raise ArgumentError(f"{target}: holds another conversion than {folder}; remove it, or choose another folder")
    for leftover in target.rglob(f".*{PARTIAL}"):
        leftover.unlink(missing_ok=True)
    known = frozenset(fetched.shards if fetched else names if old else ())
    files = []
    for split, entry in manifest.splits.items():
        shards = {shard_file(shard.name): shard.file for shard in entry.shards if shard.name in needed}
        # A split without shards has no shard that would bring its index.
        touched = not entry.shards or any(shard.name in needed | known for shard in entry.shards)
        tables = {table_file(kind): table for kind, table in entry.index.items() if touched}
        for name, file in {**tables, **shards}.items():
            path = target / split / name
            # A file gets its name only after it was checked.
            there = path.is_file() and path.stat().st_size == file.bytes
            if not there or (reindexed and name in tables):
                files.append(Download(folder=folder / split, target=path, entry=file))
    unfinished = fetched is not None and len(known) == len(names)
    return Order(
        dataset=dataset,
        folder=folder,
        target=target,
        names=names,
        needed=needed,
        known=known,
        files=tuple(files),
        done=old is not None and not (unfinished or reindexed or files) and needed <= known,
    )


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


def _same_shards(old: Manifest, new: Manifest) -> bool:
    """Return whether two manifests are of one conversion, between which at most the index was made anew."""
    shards = [{split: entry.shards for split, entry in manifest.splits.items()} for manifest in (old, new)]
    return shards[0] == shards[1] and (old.source, old.parameters) == (new.source, new.parameters)


def _finish(order: Order, source: str, content: bytes) -> None:
    """Write what says that the files are there; the manifest, of these bytes, comes last."""
    quarantine, here = order.dataset.manifest.quarantine, order.known | order.needed
    order.write_known(source, here)
    if quarantine is not None:
        listed = order.folder.read(QUARANTINE_NAME)
        if hashlib.sha256(listed).hexdigest() != quarantine.sha256:
            raise FetchError(f"{order.folder}/{QUARANTINE_NAME}: its SHA-256 is not that of its manifest")
        write_whole(order.target / QUARANTINE_NAME, listed, durable=True, suffix=PARTIAL)
    write_whole(order.target / MANIFEST_NAME, content, durable=True, suffix=PARTIAL)
    if len(here) == len(order.names):
        (order.target / FETCHED_NAME).unlink()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parsed = _parse(arguments)
    interrupt_on_kill()
    return run_command(lambda: _fetch(parsed), interrupted="interrupted; run the same command again to go on")


def _fetch(parsed: argparse.Namespace) -> None:
    splits = tuple(dict.fromkeys(parsed.split or ["train"]))
    done = fetch(parsed.remote, parsed.local, parsed.mixture, splits=splits, jobs=parsed.jobs)
    if parsed.json:
        print(json.dumps(done, indent=1))
        return
    for entry in done["datasets"]:
        print(
            f"{entry['dataset']} {entry['version']}: {entry['shards_needed']:,} shards needed, "
            f"{entry['shards_here']:,} of {entry['shards']:,} here"
        )
    size = filesize.decimal(done["bytes_fetched"])
    print(f"{done['files_fetched']:,} files fetched, {size}; {done['local']} is ready")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
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
    parser.add_argument("--jobs", type=whole(1), default=8, help="files at the same time (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
