"""``python -m bench.convert``."""

import sys

from bench.convert.command import main

if __name__ == "__main__":
    sys.exit(main())
