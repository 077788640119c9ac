"""``python -m bench.loader``."""

from bench.loader.command import main

raise SystemExit(main())
