"""``python -m convert.run``."""

import sys

from convert.run.command import main

if __name__ == "__main__":
    sys.exit(main())
