"""``python -m convert.sample``."""

from stream.storage.program import run

if __name__ == "__main__":
    run("convert.sample.command")
