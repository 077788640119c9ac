"""A training script without the training: ``python -m bench.chaos.trainer`` streams batches.

It logs ``step hash`` for every batch and saves the state after it; started again, it resumes from the state. An error
of the loader or the file system ends it with one line.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from stream import StreamError, digest, make_loader
from stream.loader.state import write_json


def main() -> int:
    """Run the script and return its exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True)
    parser.add_argument("--mixture", required=True, help="JSON: names and weights")
    parser.add_argument("--run", required=True, type=Path, help="folder for log and state")
    parser.add_argument("--steps", required=True, type=int)
    parser.add_argument("--batch-size", required=True, type=int)
    parser.add_argument("--step-ms", required=True, type=float)
    options = parser.parse_args()
    log, saved = options.run / "log", options.run / "state.json"
    try:
        loader = make_loader(
            options.root,
            json.loads(options.mixture),
            batch_size=options.batch_size,
            num_workers=2,
            num_steps=options.steps,
        )
        iterator = iter(loader)
        if saved.exists():
            iterator.set_state(json.loads(saved.read_text()))
        with log.open("a") as file:
            for batch in iterator:
                file.write(f"{iterator.step - 1} {digest(batch)}\n")
                file.flush()
                write_json(saved, iterator.get_state())
                time.sleep(options.step_ms / 1000)
    except (StreamError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
