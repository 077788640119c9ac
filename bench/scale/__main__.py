"""``python -m bench.scale``."""

from bench.scale.command import main

raise SystemExit(main())
