"""Command line of ``pairstream publish``, which uploads a converted root to the Hugging Face Hub."""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pairstream.command import command_parser
from pairstream.info.overview import Overview, describe, open_root
from pairstream.publish.card import MARK, write_card
from pairstream.publish.pictures import draw_strip
from stream.base.arguments import interrupt_on_kill, run_command
from stream.base.errors import ArgumentError, FormatError
from stream.format.names import MANIFEST_NAME
from stream.storage.files import write_atomically
from stream.storage.hub import SCHEME, hub_requests
from stream.storage.remote import RemoteError, is_remote
from stream.storage.remote_folder import LISTING

_EPILOG = """\
Shards and tables are uploaded first, in several commits. Manifests, info.json, pictures and the card come last, in one
commit: a dataset is complete or absent in any commit. After an interruption the same command continues.
A card that you wrote yourself stays. Files of datasets that the root no longer has stay in the repository too.

exit codes:
  0    uploaded, or written by --card-only
  1    failed; the same command continues
  2    a wrong name, path or option, or no permission
  130  interrupted; the same command continues

examples:
  pairstream publish data/oxe me/oxe --private
  pairstream publish data/oxe me/robots --folder oxe --license cc-by-4.0
  pairstream publish data/oxe me/oxe --card-only README.md
"""
_FOLDER = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*", re.ASCII)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parse(arguments)
    interrupt_on_kill()
    return run_command(lambda: _publish(options), interrupted="interrupted; run the same command again to continue")


def publish(
    root: str | Path, repository: str, *, folder: str = "", private: bool = False, licence: str | None = None
) -> dict[str, Any]:
    """Upload the complete datasets of a root, and return the address, the commit and counts.

    Args:
        root: Local root.
        repository: ``ORG/NAME`` of a dataset on the Hub, which is made if it does not exist.
        folder: Folder of the root in the repository.
        private: Whether a repository that is made is private.
        licence: Licence of the card; by default that of all sources if they have the same.

    Raises:
        ArgumentError: The root holds no complete dataset, or a damaged one or one that was fetched in part.
        RemoteError: The Hub refuses the upload or does not answer; the same call continues.
    """
    overview = _open(root)
    pictures = {dataset.name: draw_strip(overview.catalog, dataset) for dataset in overview.datasets}
    prefix = f"{folder}/" if folder else ""
    picture_paths = {name: f"pictures/{prefix}{name}.jpg" for name, picture in pictures.items() if picture is not None}
    versions = [f"{dataset.name}/{dataset.version}" for dataset in overview.datasets]
    arguments: dict[str, Any] = {"repo_id": repository, "repo_type": "dataset"}
    descriptions = [describe(dataset) for dataset in overview.datasets]
    with tempfile.TemporaryDirectory() as temporary, hub_requests(f"{SCHEME}{repository}", done="written"):
        from huggingface_hub import CommitOperationAdd, HfApi

        hub_api = HfApi()
        address = hub_api.create_repo(**arguments, private=private or None, exist_ok=True)
        hub_api.upload_folder(
            **arguments,
            folder_path=root,
            path_in_repo=folder or None,
            commit_message="Shards and index",
            allow_patterns=[f"{version}/*" for version in versions],
            ignore_patterns=[f"*/{MANIFEST_NAME}", "*/cached/*", "*/.*"],
        )
        last_files: dict[str, bytes] = {
            f"{prefix}{version}/{MANIFEST_NAME}": (Path(root) / version / MANIFEST_NAME).read_bytes()
            for version in versions
        }
        listing = {"datasets": descriptions, "incomplete": []}
        last_files[f"{prefix}{LISTING}"] = (json.dumps(listing, indent=1) + "\n").encode()
        last_files |= {path: pictures[name] or b"" for name, path in picture_paths.items()}
        if keeps_card := _has_other_card(hub_api, arguments, Path(temporary)):
            card = None
        else:
            card = write_card(
                repository, overview.datasets, descriptions, folder=folder, licence=licence, pictures=picture_paths
            )
            last_files["README.md"] = card.encode()
        operations = [CommitOperationAdd(path_in_repo=path, path_or_fileobj=last_files[path]) for path in last_files]
        commit = hub_api.create_commit(**arguments, operations=operations, commit_message="Manifests and card")
    return {
        "address": str(address),
        "root": f"{SCHEME}{repository}@{commit.oid}" + (f"/{folder}" if folder else ""),
        "datasets": versions,
        "bytes": sum(description["bytes"] for description in descriptions),
        "card": "kept" if keeps_card else "written",
    }


def _open(root: str | Path) -> Overview:
    if is_remote(root):
        raise ArgumentError(f"{root}: expected a local root; copy it with `pairstream fetch` first")
    overview = open_root(root)
    for error in overview.damaged.values():
        raise FormatError(error)
    if partial := [dataset.name for dataset in overview.datasets if dataset.fetched is not None]:
        raise ArgumentError(f"{root}: {', '.join(partial)} was fetched in part; publish its source")
    return overview


def _has_other_card(hub_api: Any, arguments: dict[str, Any], folder: Path) -> bool:
    """Return whether the repository has a card that this command has not written."""
    if not hub_api.file_exists(filename="README.md", **arguments):
        return False
    return MARK not in Path(hub_api.hf_hub_download(filename="README.md", **arguments, local_dir=folder)).read_text()


def _publish(options: argparse.Namespace) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", options.repository, re.ASCII):
        raise ArgumentError(f"{options.repository!r}: expected ORG/NAME, a dataset of the Hugging Face Hub")
    if options.folder and not _FOLDER.fullmatch(options.folder):
        raise ArgumentError(f"--folder {options.folder!r}: expected a folder in the repository, such as oxe")
    if options.card_only is not None:
        overview = _open(options.root)
        descriptions = [describe(dataset) for dataset in overview.datasets]
        card = write_card(
            options.repository, overview.datasets, descriptions, folder=options.folder, licence=options.license
        )
        write_atomically(options.card_only, card)
        print(f"{options.card_only}: the card of {len(descriptions)} datasets, without pictures; nothing was uploaded")
        return
    try:
        summary = publish(
            options.root,
            options.repository,
            folder=options.folder,
            private=options.private,
            licence=options.license,
        )
    except RemoteError as error:
        raise RemoteError(f"{error}; run the same command again to continue", refused=error.refused) from error
    if options.json:
        print(json.dumps(summary, indent=1))
        return
    print(f"{len(summary['datasets'])} datasets: {summary['address']}")
    if summary["card"] == "kept":
        print("README.md of the repository is not a card of this command, and was left as it is")
    first = summary["datasets"][0].partition("/")[0]
    print(f'load it with ps.make_loader("{summary["root"]}", "{first}", batch_size=64)')


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    description = "Upload a converted root to a dataset of the Hugging Face Hub, with a card (extra hub)."
    parser = command_parser("publish", description=description, epilog=_EPILOG)
    parser.add_argument("root", metavar="ROOT", help="a converted root on this machine")
    parser.add_argument("repository", metavar="ORG/NAME", help="dataset of the Hub, made if it does not exist")
    parser.add_argument("--folder", default="", help="folder of the root in the repository (default: its top)")
    parser.add_argument("--private", action="store_true", help="a repository that is made is private")
    parser.add_argument(
        "--license", metavar="ID", help="licence of the card, such as cc-by-4.0 (default: of the sources)"
    )
    parser.add_argument("--card-only", type=Path, metavar="FILE", help="write the card to a file, and upload nothing")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser.parse_args(arguments)
