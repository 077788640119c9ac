"""An S3 server with the files of a folder: ``python -m tests.distributed.hosts.s3_store FOLDER PORT``."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import s3fs
from moto.server import ThreadedMotoServer


def main(folder: Path, port: int) -> None:
    """Serve the bucket ``data`` until the process is killed; say when it is complete."""
    ThreadedMotoServer(ip_address="0.0.0.0", port=port, verbose=False).start()
    store = s3fs.S3FileSystem(key="key", secret="secret", endpoint_url=f"http://127.0.0.1:{port}")
    store.call_s3("create_bucket", Bucket="data")
    store.put(f"{folder}/", "data/", recursive=True)
    print("ready", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
