"""``python -m stream.export``."""

import sys

from stream.export.command import main

if __name__ == "__main__":
    sys.exit(main())
