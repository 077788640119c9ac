"""``python -m bench.train``."""

from bench.train.command import main

raise SystemExit(main())
