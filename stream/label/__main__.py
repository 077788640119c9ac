"""``python -m stream.label``."""

from stream.storage.program import run

if __name__ == "__main__":
    run("stream.label.command")
