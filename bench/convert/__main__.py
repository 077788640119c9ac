"""``python -m bench.convert``."""

from bench.convert.command import main

raise SystemExit(main())
