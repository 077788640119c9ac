"""``python -m convert.doctor``."""

from stream.storage.program import run

if __name__ == "__main__":
    run("convert.doctor.command")
