"""``python -m bench.train``."""

import sys

from bench.train.command import main

if __name__ == "__main__":
    sys.exit(main())
