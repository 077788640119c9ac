"""``python -m tests.faults.chaos``."""

from tests.faults.chaos.command import main

raise SystemExit(main())
