"""An S3 server with the files of a folder: ``python -m tests.distributed.hosts.s3_store FOLDER PORT``."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from moto.server import ThreadedMotoServer
from obstore.store import S3Store


def main(folder: Path, port: int) -> None:
    """Serve the bucket ``data`` until the process is killed; say when it is complete."""
    ThreadedMotoServer(ip_address="0.0.0.0", port=port, verbose=False).start()
    address = f"http://127.0.0.1:{port}"
    urlopen(Request(f"{address}/data", method="PUT")).close()
    access: Any = {"access_key_id": "key", "secret_access_key": "secret", "region": "us-east-1"}
    store = S3Store("data", endpoint=address, client_options={"allow_http": True}, **access)
    for path in folder.rglob("*"):
        if path.is_file():
            store.put(path.relative_to(folder).as_posix(), path)
    print("ready", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
