"""``python -m stream.label``."""

import sys

from stream.label.command import main

if __name__ == "__main__":
    sys.exit(main())
