"""``python -m convert.verify``."""

from stream.storage.arguments import run_program

if __name__ == "__main__":
    run_program("convert.verify.command")
