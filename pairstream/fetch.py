"""Command line of ``pairstream fetch``, which copies the files of a mixture to this machine.

It copies the index of each split that the mixture uses, and the ArrayRecord files with the mixture's episodes. It is
safe to stop at any time: a file gets its name when it is complete and checked, then ``fetched.json`` lists its shard,
and the manifest comes last. Fetching again continues, or adds files.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pairstream.command import command_parser
from stream.base.arguments import interrupt_on_kill, run_command, whole_number
from stream.base.errors import ArgumentError
from stream.base.progress import human_bytes
from stream.cache.copies import RemoteCatalog
from stream.cache.download import count_damaged
from stream.format.catalog import Dataset
from stream.order.member import split_ranges, touched_shards
from stream.order.mixture import resolve_mixture
from stream.storage.remote import is_remote

_EPILOG = """\
The fetched folder is a root like its source: samples, batches and loader.json are the same. The loader refuses a
split whose shards were not fetched. After an interruption the same command continues, without fetching complete files
again. A table whose hash differs from the manifest, or a shard whose size does, is damaged: it is fetched again. After
`pairstream reindex` on the source the same command fetches the new index only.

exit codes:
  0    the files are complete
  1    failed; complete files stay, and the same command continues
  2    a wrong name, path, option, bucket or credential; nothing was fetched
  130  interrupted; the same command continues

examples:
  pairstream fetch s3://bucket/oxe /local/oxe --mixture oxe29
  pairstream fetch gs://bucket/oxe /local/oxe --mixture bridge --split 'train[:10%]' --split test
  pairstream fetch /nfs/oxe /local/oxe --mixture my_mixture.yaml --split train --jobs 16
"""


def fetch(
    remote: str, local: str | Path, mixture: Any, *, splits: Sequence[str] = ("train",), jobs: int = 8
) -> dict[str, Any]:
    """Copy the files that the splits of a mixture need, and return counts. Complete files stay after an error.

    Raises:
        ArgumentError: An argument is wrong, or the folder holds a different conversion.
        FetchError: A file differs from its manifest, or the disk is too small.
        FormatError: A manifest is damaged.
        RemoteError: The source cannot be read.
        OSError: The folder cannot be written.
    """
    if is_remote(local):
        raise ArgumentError(f"{local}: expected a local folder to copy to")
    catalog = RemoteCatalog(remote)
    needed_shards = _needed_shards(catalog, mixture, splits)
    copy_orders, copied_files = catalog.copy(needed_shards.values(), Path(local), jobs=jobs)
    return {
        "remote": remote,
        "local": str(local),
        "files_fetched": len(copied_files),
        "bytes_fetched": sum(copied_file.entry.bytes for copied_file in copied_files),
        **count_damaged(copied_files),
        "datasets": [
            {
                "dataset": copy_order.dataset.name,
                "version": copy_order.dataset.version,
                "shards_needed": len(copy_order.needed),
                "shards_here": len(copy_order.fetched | copy_order.needed),
                "shards": len(copy_order.names),
            }
            for copy_order in copy_orders
        ],
    }


def _needed_shards(catalog: RemoteCatalog, mixture: Any, splits: Sequence[str]) -> dict[Path, tuple[Dataset, set[str]]]:
    """Return the datasets of a mixture and the names of their shards in the splits, by folder."""
    needed_shards: dict[Path, tuple[Dataset, set[str]]] = {}
    for split_name in splits:
        for member in resolve_mixture(mixture, split_name, catalog).members:
            if member.root is not None:
                raise ArgumentError(
                    f"mixture: member {member.name or member.dataset} has a separate root, {member.root}; fetch it "
                    "from that root with a separate mixture, and leave it out here"
                )
            dataset = catalog.open(member.dataset)
            _, shard_names = needed_shards.setdefault(dataset.folder, (dataset, set()))
            shard_names.update(*(touched_shards(episodes, dataset) for episodes in split_ranges(member.split, dataset)))
    return needed_shards


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parse(arguments)
    interrupt_on_kill()
    return run_command(lambda: _fetch(options), interrupted="interrupted; run the same command again to continue")


def _fetch(options: argparse.Namespace) -> None:
    splits = list(dict.fromkeys(options.split or ["train"]))
    summary = fetch(options.remote, options.local, options.mixture, splits=splits, jobs=options.jobs)
    if options.json:
        print(json.dumps(summary, indent=1))
        return
    for dataset in summary["datasets"]:
        needed = f"{dataset['shards_needed']:,} of {dataset['shards']:,} shards needed"
        print(f"{dataset['dataset']} {dataset['version']}: {needed}, {dataset['shards_here']:,} here")
    if summary["tables_damaged"] or summary["shards_damaged"]:
        print(f"damaged, and fetched again: {summary['tables_damaged']:,} tables, {summary['shards_damaged']:,} shards")
    fetched_size = human_bytes(summary["bytes_fetched"])
    print(f"{summary['files_fetched']:,} files fetched, {fetched_size}; {summary['local']} is ready")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command_parser(
        "fetch", description="Copy the shards and index of a mixture to this machine, and check them.", epilog=_EPILOG
    )
    parser.add_argument("remote", metavar="REMOTE", help="a converted root: s3://, gs://, https://, hf://, or a folder")
    parser.add_argument("local", metavar="LOCAL", help="folder of the copy")
    parser.add_argument("--mixture", required=True, help="a mixture (oxe29), a dataset, or a YAML file")
    parser.add_argument(
        "--split", action="append", help="split as for make_loader; repeat the option for several (default: train)"
    )
    parser.add_argument("--jobs", type=whole_number(1), default=8, help="files to copy at the same time (default: 8)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser.parse_args(arguments)
