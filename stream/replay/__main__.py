"""``python -m stream.replay``."""

from stream.storage.program import run

if __name__ == "__main__":
    run("stream.replay.command")
