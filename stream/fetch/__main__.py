"""``python -m stream.fetch``."""

import sys

from stream.fetch.command import main

if __name__ == "__main__":
    sys.exit(main())
