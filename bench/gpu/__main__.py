"""``python -m bench.gpu``."""

from bench.gpu.command import main

raise SystemExit(main())
