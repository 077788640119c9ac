"""``python -m stream.browse``."""

from stream.storage.program import run

if __name__ == "__main__":
    run("stream.browse.command")
