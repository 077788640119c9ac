"""``python -m stream.export``."""

from stream.storage.program import run

if __name__ == "__main__":
    run("stream.export.command")
