"""``python -m tests.fuzz.coverage_guided --root ROOT``: the targets under atheris, which keeps what reaches new code.

Each target runs in a process of its own for ``--seconds``. What comes out of one that is no error of ours ends it and
is printed, with the input in ``--work``; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

_MOST_MEGABYTES = 4096
_MOST_SECONDS = 60


def _fuzz(root: Path, work: Path, name: str, seconds: int) -> None:
    import atheris

    with atheris.instrument_imports(include=["convert", "stream"]):
        from tests.fuzz.targets import make_targets
    folder = work / name
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    target = make_targets(root, folder)[name]
    for number, seed in enumerate(target.seeds):
        (corpus / f"seed{number}").write_bytes(seed)
    flags = [f"-max_total_time={seconds}", f"-rss_limit_mb={_MOST_MEGABYTES}", f"-timeout={_MOST_SECONDS}"]
    longest = max(len(seed) for seed in target.seeds)
    flags += [f"-max_len={2 * longest + 256}", f"-artifact_prefix={folder}/", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], target.read)
    atheris.Fuzz()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.coverage_guided", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="a converted root with bridge and kuka")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default: %(default)s)")
    parser.add_argument("--targets", default="", metavar="A,B", help="default: all")
    parser.add_argument("--work", type=Path, help="folder for input that was kept (default: a temporary one)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        _fuzz(options.root, options.work, options.one, options.seconds)
        return 0
    from tests.fuzz.test_targets import NAMES

    failed = 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary:
        work = options.work or Path(temporary)
        for name in options.targets.split(",") if options.targets else NAMES:
            command = [sys.executable, "-m", "tests.fuzz.coverage_guided", "--one", name, "--root", str(options.root)]
            command += ["--work", str(work), "--seconds", str(options.seconds)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            runs = [line.split()[-1] for line in done.stderr.splitlines() if "number_of_executed_units" in line]
            covered = [line.split("cov: ")[1].split()[0] for line in done.stderr.splitlines() if "cov: " in line]
            result = "nothing foreign came out" if done.returncode == 0 else f"FAILED ({done.returncode})"
            print(f"{name}: {runs[-1] if runs else '?'} inputs, {covered[-1] if covered else '?'} branches, {result}")
            sys.stdout.flush()
            if done.returncode:
                failed += 1
                print((done.stdout + done.stderr)[-6000:], file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
