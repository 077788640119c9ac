"""``python -m tests.faults.corruption``."""

from tests.faults.corruption.command import main

raise SystemExit(main())
