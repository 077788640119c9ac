"""``pairstream doctor``."""

from stream.base.arguments import run_program

if __name__ == "__main__":
    run_program("convert.doctor.command")
