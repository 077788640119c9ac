"""``python -m stream.info``."""

from stream.storage.program import run

if __name__ == "__main__":
    run("stream.info.command")
