"""``python -m stream.export``."""

from stream.storage.arguments import run_program

if __name__ == "__main__":
    run_program("stream.export.command")
