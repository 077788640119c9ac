"""``python -m bench.corruption``."""

import sys

from bench.corruption.command import main

if __name__ == "__main__":
    sys.exit(main())
