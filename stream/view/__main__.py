"""``python -m stream.view``."""

from stream.storage.program import run

if __name__ == "__main__":
    run("stream.view.command")
