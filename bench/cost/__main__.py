"""``python -m bench.cost``."""

import sys

from bench.cost.command import main

if __name__ == "__main__":
    sys.exit(main())
