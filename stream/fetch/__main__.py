"""``python -m stream.fetch``."""

from stream.storage.program import run

if __name__ == "__main__":
    run("stream.fetch.command")
