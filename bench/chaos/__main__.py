"""``python -m bench.chaos``."""

import sys

from bench.chaos.command import main, use_private_memory

if __name__ == "__main__":
    use_private_memory()
    sys.exit(main())
