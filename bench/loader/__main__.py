"""``python -m bench.loader``."""

import sys

from bench.loader.command import main

if __name__ == "__main__":
    sys.exit(main())
