"""``python -m convert.verify``."""

from stream.storage.program import run

if __name__ == "__main__":
    run("convert.verify.command")
