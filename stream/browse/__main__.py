"""``python -m stream.browse``."""

import sys

from stream.browse.command import main

if __name__ == "__main__":
    sys.exit(main())
