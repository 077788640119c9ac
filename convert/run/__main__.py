"""``python -m convert.run``."""

from stream.storage.program import run

if __name__ == "__main__":
    run("convert.run.command")
