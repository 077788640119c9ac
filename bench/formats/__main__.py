"""``python -m bench.formats``."""

import sys

from bench.formats.command import main

if __name__ == "__main__":
    sys.exit(main())
