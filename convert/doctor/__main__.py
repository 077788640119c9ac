"""``python -m convert.doctor``."""

import sys

from convert.doctor.command import main

if __name__ == "__main__":
    sys.exit(main())
