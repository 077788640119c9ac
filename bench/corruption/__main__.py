"""``python -m bench.corruption``."""

from bench.corruption.command import main

raise SystemExit(main())
