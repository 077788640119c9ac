"""``python -m bench.report``."""

from bench.report.command import main

raise SystemExit(main())
