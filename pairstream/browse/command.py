"""Command line of ``pairstream browse``."""

from __future__ import annotations

import argparse
import contextlib
import errno
import socket
import sys
import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from pairstream.browse.opened import Opened
from stream.base.arguments import Parser, add_cache, interrupt_on_kill, run_command, whole
from stream.base.errors import ArgumentError
from stream.base.extras import imports_of
from stream.storage.remote import cached_root

_EPILOG = """\
The pages: an overview; a dataset with its episodes, histograms and findings; an episode to play; a mixture; a step of a
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
    parsed = _parse(arguments)
    return run_command(lambda: _browse(parsed), interrupted="")


def _browse(parsed: argparse.Namespace) -> None:
    opened = Opened.open(
        cached_root(parsed.root, parsed.cache),
        marks=parsed.marks,
        takes_paths=parsed.host in ("127.0.0.1", "localhost", "::1"),
        transforms=parsed.transforms,
    )
    if others := opened.marks.others:
        print(
            f"{parsed.marks} also has marks of {', '.join(others)}, which {opened.catalog.place} does not hold; they "
            "stay in the file",
            file=sys.stderr,
        )
    if parsed.static is not None:
        from pairstream.browse.static import write_static

        written = write_static(
            opened, parsed.static, episodes=parsed.episodes, doctor=parsed.doctor, most_bytes=parsed.megabytes * 10**6
        )
        print(f"{written.episodes} episodes, {written.bytes / 1e6:.1f} MB: open {written.index}")
        return
    if parsed.transforms is not None:
        from pairstream.replay.shown_step import find_transforms

        find_transforms(parsed.transforms)
    with _bind(parsed.host, parsed.port) as listening, imports_of("browse", by="pairstream browse"):
        from pairstream.browse.app import serve

        interrupt_on_kill()
        address = f"http://{f'[{parsed.host}]' if ':' in parsed.host else parsed.host}:{listening.getsockname()[1]}/"

        def started() -> None:
            print(f"{opened.catalog.place} is at {address} (Ctrl-C ends it)", flush=True)
            if not parsed.no_open:
                threading.Thread(target=webbrowser.open, args=[address], daemon=True).start()

        # Ctrl-C is how this command ends.
        with contextlib.suppress(KeyboardInterrupt):
            serve(opened, listening, started=started)


def _bind(host: str, port: int) -> socket.socket:
    """Return a listening socket."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
        listening.listen(2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ArgumentError(f"port {port} of {host} is in use; give another with --port, or 0 for any") from None
        raise ArgumentError(f"--host {host} --port {port}: {error.strerror or error}") from None
    return listening


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 1 << 16):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a port from 0 to 65535")
    return int(text)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="pairstream browse",
        description="Look at converted data in a browser: datasets, episodes, mixtures and runs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("root", type=Path, metavar="ROOT", help="folder that convert.run wrote to, or its address")
    add_cache(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default: 127.0.0.1, this machine alone)")
    parser.add_argument("--port", type=_port, default=8080, help="port, 0 for any free one (default: 8080)")
    parser.add_argument(
        "--marks", type=Path, default=Path("marks.json"), metavar="FILE", help="marked episodes (default: marks.json)"
    )
    parser.add_argument(
        "--transforms",
        metavar="MODULE:NAME",
        help="transforms of runs, or FILE.py:NAME, as of pairstream.replay: the page of a run shows what the model got",
    )
    parser.add_argument("--no-open", action="store_true", help="do not open a browser window")
    files = parser.add_argument_group("files in place of a server")
    files.add_argument(
        "--static", type=Path, metavar="DIR", help="write overview and episodes as files into a new folder, and end"
    )
    files.add_argument(
        "--episodes",
        type=_episodes,
        metavar="NAME/SPLIT/NUMBER,...",
        help="with --static: the episodes; `marked` for the marked ones (default: the first of each dataset)",
    )
    files.add_argument("--doctor", action="store_true", help="with --static: the findings of convert.doctor too")
    files.add_argument(
        "--megabytes", type=whole(1), default=100, metavar="N", help="with --static: most MB of pictures (default: 100)"
    )
    parsed = parser.parse_args(arguments)
    if parsed.static is None and (parsed.episodes is not None or parsed.doctor):
        parser.error("--episodes and --doctor are for --static DIR")
    return parsed


def _episodes(text: str) -> list[tuple[str, str, int]] | str:
    """Return names, splits and numbers, or ``marked``."""
    if text == "marked":
        return text
    found = []
    for each in text.split(","):
        name, _, rest = each.strip().partition("/")
        split, _, number = rest.partition("/")
        if not (name and split and number.isascii() and number.isdigit() and len(number) < 10):
            raise argparse.ArgumentTypeError(f"found {each!r}, expected NAME/SPLIT/NUMBER, such as bridge/train/3")
        found.append((name, split, int(number)))
    return found
