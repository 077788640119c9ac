"""Command line of ``pairstream browse``."""

from __future__ import annotations

import argparse
import contextlib
import errno
import re
import socket
import sys
import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from convert.report import count_noun
from pairstream.browse.browsed_root import LOOPBACK, BrowsedRoot
from pairstream.command import command_parser, needs_extra
from stream.base.arguments import add_cache, interrupt_on_kill, run_command, whole_number
from stream.base.errors import ArgumentError
from stream.storage.cache_folder import cached_root

_EPILOG = """\
Pages: an overview; a dataset with its episodes, histograms and findings; an episode to play; a mixture; a step of a
run. They change nothing below ROOT.

exit codes:
  0    ended by Ctrl-C, or --static is written
  1    files of the data are damaged
  2    a wrong option, no converted root, or a port in use

examples:
  pairstream browse build/demo/oxe
  pairstream browse build/demo/frames --port 9000 --no-open
  pairstream browse build/demo/frames --static report --episodes bridge/train/0,rt1/train/2 --doctor
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parse(arguments)
    return run_command(lambda: _browse(options), interrupted="")


def _browse(options: argparse.Namespace) -> None:
    root = BrowsedRoot(
        cached_root(options.root, options.cache),
        marks=options.marks,
        takes_paths=options.host in LOOPBACK,
        transforms=options.transforms,
    )
    if root.marks.others:
        foreign = f"marks of {', '.join(root.marks.others)}, which {root.catalog.location} does not hold"
        print(f"{options.marks} also has {foreign}; they stay in the file", file=sys.stderr)
    if options.static is not None:
        from pairstream.browse.static import write_static

        choice = {"episodes": options.episodes, "doctor": options.doctor}
        num_episodes, num_bytes = write_static(root, options.static, **choice, most_bytes=options.megabytes * 10**6)
        print(f"{count_noun(num_episodes, 'episode')}, {num_bytes / 1e6:.1f} MB: open {options.static / 'index.html'}")
        return
    if options.transforms is not None:
        from pairstream.replay.shown_step import find_transforms

        find_transforms(options.transforms)
    with _bind(options.host, options.port) as listening, needs_extra("browse", by="pairstream browse"):
        from pairstream.browse.app import serve

        interrupt_on_kill()
        host = f"[{options.host}]" if ":" in options.host else options.host
        address = f"http://{host}:{listening.getsockname()[1]}/"

        def started() -> None:
            print(f"{root.catalog.location} is at {address} (Ctrl-C ends it)", flush=True)
            if not options.no_open:
                threading.Thread(target=webbrowser.open, args=[address], daemon=True).start()

        # Ctrl-C is how this command ends.
        with contextlib.suppress(KeyboardInterrupt):
            serve(root, listening, started=started)


def _bind(host: str, port: int) -> socket.socket:
    """Return a listening socket."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ArgumentError(f"port {port} of {host} is in use; give another with --port, or 0 for any") from None
        raise ArgumentError(f"--host {host} --port {port}: {error.strerror or error}") from None


def _port(option_text: str) -> int:
    if not (option_text.isascii() and option_text.isdigit() and int(option_text) < 1 << 16):
        raise argparse.ArgumentTypeError(f"found {option_text!r}, expected a port from 0 to 65535")
    return int(option_text)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    description = "Look at converted data in a browser: datasets, episodes, mixtures and runs."
    parser = command_parser("browse", description=description, epilog=_EPILOG)
    parser.add_argument("root", type=Path, metavar="ROOT", help="folder that convert.run wrote to, or its address")
    add_cache(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default: 127.0.0.1, only this machine)")
    parser.add_argument("--port", type=_port, default=8080, help="port, 0 for any free one (default: 8080)")
    parser.add_argument("--marks", type=Path, default="marks.json", metavar="FILE", help="marks (default: marks.json)")
    text = "transforms of runs, or FILE.py:NAME, as for `pairstream replay`: a run's page shows the model's input"
    parser.add_argument("--transforms", metavar="MODULE:NAME", help=text)
    parser.add_argument("--no-open", action="store_true", help="do not open a browser window")
    files = parser.add_argument_group("files instead of a server")
    files.add_argument("--static", type=Path, metavar="DIR", help="write the pages into a new folder, and end")
    text = "with --static: the episodes; `marked` for the marked ones (default: the first of each dataset)"
    files.add_argument("--episodes", type=_episodes, metavar="NAME/SPLIT/NUMBER,...", help=text)
    files.add_argument("--doctor", action="store_true", help="with --static: the findings of `pairstream doctor` too")
    text = "with --static: most MB of pictures (default: 100)"
    files.add_argument("--megabytes", type=whole_number(1), default=100, metavar="N", help=text)
    options = parser.parse_args(arguments)
    if options.static is None and (options.episodes is not None or options.doctor):
        parser.error("--episodes and --doctor are for --static DIR")
    return options


def _episodes(option_text: str) -> list[tuple[str, str, int]] | str:
    """Return names, splits and numbers, or ``marked``."""
    if option_text == "marked":
        return option_text
    chosen_episodes = []
    for word in option_text.split(","):
        match = re.fullmatch(r"\s*([^/]+)/([^/]+)/([0-9]{1,9})\s*", word)
        if match is None:
            raise argparse.ArgumentTypeError(f"found {word!r}, expected NAME/SPLIT/NUMBER, such as bridge/train/3")
        chosen_episodes.append((match[1], match[2], int(match[3])))
    return chosen_episodes
