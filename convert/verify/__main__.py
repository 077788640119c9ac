"""``python -m convert.verify``."""

import sys

from convert.verify.command import main

if __name__ == "__main__":
    sys.exit(main())
