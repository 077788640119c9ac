"""``python -m stream.replay``."""

import sys

from stream.replay.command import main

if __name__ == "__main__":
    sys.exit(main())
