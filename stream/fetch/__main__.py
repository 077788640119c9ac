"""``python -m stream.fetch``."""

from stream.storage.arguments import run_program

if __name__ == "__main__":
    run_program("stream.fetch.command")
