"""``python -m convert.sample``."""

import sys

from convert.sample.command import main

if __name__ == "__main__":
    sys.exit(main())
