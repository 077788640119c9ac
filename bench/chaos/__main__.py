"""``python -m bench.chaos``."""

import sys

from bench.chaos.command import main

if __name__ == "__main__":
    sys.exit(main())
