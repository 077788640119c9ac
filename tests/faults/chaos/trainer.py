"""A training script without the training: ``python -m tests.faults.chaos.trainer REQUEST`` streams batches.

The request is JSON: arguments of the ``loader``, a ``folder`` for log and state, and seconds of a step, ``step_s``. The
script logs ``step hash`` for every batch and saves the state after it; started again, it resumes from the state. An
error of the loader or the file system ends it with one line.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from stream import StreamError, digest, make_loader
from stream.loader.state import write_json


def main(request: dict[str, Any]) -> int:
    folder = Path(request["folder"])
    log, saved = folder / "log", folder / "state.json"
    try:
        iterator = iter(make_loader(**request["loader"]))
        if saved.exists():
            iterator.set_state(json.loads(saved.read_text()))
        with log.open("a") as file:
            for batch in iterator:
                file.write(f"{iterator.step - 1} {digest(batch)}\n")
                file.flush()
                write_json(saved, iterator.get_state())
                time.sleep(request["step_s"])
    except (StreamError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
