"""``python -m bench.merge``."""

import sys

from bench.merge.command import main

if __name__ == "__main__":
    sys.exit(main())
