"""``python -m bench.report``."""

import sys

from bench.report.command import main

if __name__ == "__main__":
    sys.exit(main())
