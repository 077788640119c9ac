"""``python -m bench.chaos``."""

from bench.chaos.command import main, use_private_memory

use_private_memory()
raise SystemExit(main())
