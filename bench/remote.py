"""``python -m bench.remote``: a root read in place, compared with the same root on the disk.

nginx serves the root on this machine, so it takes a share of the same processors. Each round measures one pass over the
mixture from the disk, in place with an empty cache, and in place again. Both the clock and the CPU time of trainer and
workers are compared: other programs disturb the second less. Then a proxy adds latency, and some requests fail or never
end, while a training loop sleeps instead of a device.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measure.child import BenchFailed
from bench.measure.command import Command, Output, Result, say, work_folder
from bench.measure.machine import cpu_seconds
from bench.measure.options import number, option
from bench.measure.points import median
from bench.measure.ports import answers, free_port
from bench.measure.session import wait_until
from bench.measure.tables import markdown_table
from pairstream.info.overview import describe, open_root
from stream import make_loader
from stream.base.arguments import whole_number

SHUFFLES = ("global", "block:64")
S3_GET = 0.0004 / 1000
"""Dollars a GET request, S3 Standard in us-east-1; reading from the same region costs nothing more."""
EGRESS = 0.09e-9
"""Dollars a byte that leaves AWS for the internet, up to 10 TB a month."""
_WARM_UP = 8


@dataclass(frozen=True, kw_only=True)
class RemoteOptions(Output):
    """Options of the command."""

    root: str = option("build/demo/oxe", str, "converted data")
    mixture: str = option("oxe29", str, "name of a mixture or dataset, or a YAML file")
    batch_size: int = option(64, whole_number(1), "rows of a batch")
    num_workers: int = option(2, whole_number(1), "worker processes")
    rounds: int = option(5, whole_number(1), "passes of each kind")
    latency: float = option(0.03, number(0), "latency that the proxy adds", metavar="S")
    failing: float = option(0.01, number(0), "share of requests that fail or never end", metavar="SHARE")
    compute: float = option(0.05, number(0), "time of a training step without waiting", metavar="S")


class WebServer:
    """nginx that serves a root as ``url``, with the list of its datasets; raises BenchFailed if it does not start."""

    def __init__(self, root: Path, folder: Path) -> None:
        datasets = [describe(dataset) for dataset in open_root(str(root)).datasets]
        (folder / "info.json").write_text(json.dumps({"datasets": datasets}))
        (folder / "oxe").symlink_to(root.resolve())
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/oxe"
        self._folder = folder
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary_paths = "".join(f"{kind}_temp_path {folder}; " for kind in kinds)
        (folder / "nginx.conf").write_text(
            f"daemon off; user {getpass.getuser()}; worker_processes 1; pid {folder}/pid;\n"
            f"events {{ worker_connections 1024; }}\n"
            f"http {{ access_log off; sendfile on; keepalive_requests 10000000; {temporary_paths}\n"
            f"server {{ listen 127.0.0.1:{self.port}; root {folder}; location = /oxe/info.json "
            f"{{ alias {folder}/info.json; }} }} }}"
        )
        self.start()

    def start(self) -> None:
        """Start the server."""
        program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if program is None:
            raise BenchFailed("nginx is not installed; install it (apt-get install nginx)")
        self._process = subprocess.Popen([program, "-c", self._folder / "nginx.conf", "-e", self._folder / "errors"])
        if not wait_until(lambda: answers(self.port), seconds=20):
            self.stop()
            raise BenchFailed(f"nginx did not start: {(self._folder / 'errors').read_text()[-300:]}")

    def stop(self) -> None:
        """Stop the server and break its connections."""
        self._process.terminate()
        self._process.wait()


@contextlib.contextmanager
def served(root: Path, folder: Path) -> Iterator[WebServer]:
    """Serve a root during the context; see ``WebServer``."""
    server = WebServer(root, folder)
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def slow_proxy(port: int, *, latency: float, failing: float) -> Iterator[int]:
    """Forward connections to a port with latency, fail some requests and never answer others; gives the port."""
    proxy_port = free_port()
    arguments = (proxy_port, port, latency, failing)
    process = multiprocessing.get_context("spawn").Process(target=_serve_proxy, args=arguments)
    process.start()
    try:
        if not wait_until(lambda: answers(proxy_port), seconds=20):
            raise BenchFailed("the proxy did not start")
        yield proxy_port
    finally:
        process.terminate()
        process.join()


def _serve_proxy(proxy_port: int, port: int, latency: float, failing: float) -> None:
    draw = random.Random(0)

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, back = await asyncio.open_connection("127.0.0.1", port)

        async def answer() -> None:
            while content := await upstream.read(1 << 20):
                writer.write(content)

        answers = asyncio.ensure_future(answer())
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            # A client sends one request at a time on a connection.
            while content := await reader.read(1 << 16):
                await asyncio.sleep(latency)
                if b"arrayrecord" not in content or draw.random() >= failing:
                    back.write(content)
                elif draw.random() < 0.5:
                    writer.write(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n")
        answers.cancel()
        back.close()
        writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(connect, "127.0.0.1", proxy_port)
        await server.serve_forever()

    asyncio.run(serve())


def _pass(options: RemoteOptions, root: str, *, compute: float = 0.0, **loader_options: Any) -> dict[str, float]:
    """Take one pass over the mixture, and return its rate and cost, without the first batches and the start."""
    size: dict[str, Any] = {"batch_size": options.batch_size, "num_workers": options.num_workers}
    loader = make_loader(root, options.mixture, num_epochs=1, **size, **loader_options)
    iterator = iter(loader)
    for _ in range(_WARM_UP):
        next(iterator)
        time.sleep(compute)
    pairs, waited, began, cpu_before = 0, 0.0, time.perf_counter(), cpu_seconds()
    while True:
        asked = time.perf_counter()
        batch = next(iterator, None)
        waited += time.perf_counter() - asked
        if batch is None:
            break
        pairs += len(batch["sample"])
        time.sleep(compute)
    # The kernel counts in ticks, of which a small root may take none.
    seconds, cpu_used = time.perf_counter() - began, max(cpu_seconds() - cpu_before, 1 / os.sysconf("SC_CLK_TCK"))
    stats = loader.stats()
    iterator.close()
    return {
        "pairs_s": pairs / seconds,
        "cpu_us": 1e6 * cpu_used / pairs,
        "waiting": waited / seconds,
        "requests": stats["requests"] / stats["samples"],
        "bytes": stats["remote_bytes"] / stats["samples"],
    }


def _rates(options: RemoteOptions, url: str, cache: Path) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for shuffle in SHUFFLES:
        passes: dict[str, list[dict[str, float]]] = {"disk": [], "first": [], "second": []}
        for turn in range(options.rounds):
            shutil.rmtree(cache, ignore_errors=True)
            passes["disk"].append(_pass(options, options.root, shuffle=shuffle))
            for kind in ("first", "second"):
                passes[kind].append(_pass(options, url, shuffle=shuffle, cache=cache))
            say(f"{shuffle}, round {turn + 1} of {options.rounds}")
        for kind in ("first", "second"):
            for disk, remote_pass in zip(passes["disk"], passes[kind], strict=True):
                remote_pass["of_disk_pairs_s"] = remote_pass["pairs_s"] / disk["pairs_s"]
                remote_pass["of_disk_cpu_us"] = disk["cpu_us"] / remote_pass["cpu_us"]
        figures[shuffle] = {kind: median(repeats) for kind, repeats in passes.items()}
    return figures


def _waiting(options: RemoteOptions, port: int, cache: Path) -> dict[str, dict[str, float]]:
    """Return the share of waiting while a loop trains: with records of the disk, of a far store, and of a bad one."""
    waiting: dict[str, dict[str, float]] = {}
    for shuffle in SHUFFLES:
        shares: dict[str, list[float]] = {}
        for turn in range(options.rounds):
            disk = _pass(options, options.root, shuffle=shuffle, compute=options.compute)
            shares.setdefault("from the disk", []).append(disk["waiting"])
            for kind, failing in (("with latency", 0.0), ("failures too", options.failing)):
                shutil.rmtree(cache, ignore_errors=True)
                with slow_proxy(port, latency=options.latency, failing=failing) as slow:
                    url = f"http://127.0.0.1:{slow}/oxe"
                    remote_pass = _pass(options, url, shuffle=shuffle, cache=cache, compute=options.compute)
                shares.setdefault(kind, []).append(remote_pass["waiting"])
            say(f"waiting, {shuffle}, round {turn + 1} of {options.rounds}")
        waiting[shuffle] = {kind: statistics.mean(kind_shares) for kind, kind_shares in shares.items()}
    return waiting


def _work(options: RemoteOptions) -> Iterator[dict[str, Any]]:
    with work_folder("remote", options.out) as folder, served(Path(options.root), folder) as server:
        cache = folder / "cache"
        figures: dict[str, Any] = {"rates": _rates(options, server.url, cache)}
        yield figures
        figures["waiting"] = _waiting(options, server.port, cache)
        yield figures


def format_result(result: Result) -> str:
    """Return the figures as tables in Markdown."""
    rows = []
    for shuffle, kinds in result["rates"].items():
        for kind, name in (("first", "first epoch"), ("second", "second epoch, from the cache")):
            far = kinds[kind]
            num_requests, num_bytes = far["requests"] * 1e6, far["bytes"] * 1e6
            price = f"${num_requests * S3_GET:.2f}, ${num_bytes * EGRESS:.2f} egress"
            cost = f"{num_requests:,.0f} requests, {num_bytes / 1e9:,.1f} GB; {price}"
            shares = f"{far['of_disk_pairs_s']:.2f}", f"{far['of_disk_cpu_us']:.2f}"
            rows.append((f"`{shuffle}`, {name}", *shares, cost if num_requests else "none"))
    text = markdown_table(["", "rate, of the disk's", "by CPU time", "a million samples"], rows)
    parameters = result["parameters"]
    latency, step = 1000 * parameters["latency"], 1000 * parameters["compute"]
    if waiting := result.get("waiting"):
        kinds = list(next(iter(waiting.values())))
        waits = [[f"`{name}`", *(f"{share:.1%}" for share in shares.values())] for name, shares in waiting.items()]
        text += f"\n\n{markdown_table([f'waiting, steps of {step:.0f} ms', *kinds], waits)}\n\n"
        text += f"{latency:.0f} ms of latency; {parameters['failing']:.0%} of requests fail or never end."
    return text


COMMAND = Command(
    name="remote",
    about="Measure reading in place from a web server on this machine, with latency and failures too.",
    options=RemoteOptions,
    work=_work,
    show=format_result,
    libraries=("numpy", "obstore", "simplejpeg"),
)
main = COMMAND.main

if __name__ == "__main__":
    raise SystemExit(main())
