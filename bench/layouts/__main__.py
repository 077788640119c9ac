"""``python -m bench.layouts``."""

from bench.layouts.command import main

raise SystemExit(main())
