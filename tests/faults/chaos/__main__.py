"""``python -m tests.faults.chaos``."""

from tests.faults.chaos.command import main, use_private_memory

use_private_memory()
raise SystemExit(main())
