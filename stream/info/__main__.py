"""``python -m stream.info``."""

import sys

from stream.info.command import main

if __name__ == "__main__":
    sys.exit(main())
