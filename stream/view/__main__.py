"""``python -m stream.view``."""

import sys

from stream.view.command import main

if __name__ == "__main__":
    sys.exit(main())
