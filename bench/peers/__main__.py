"""``python -m bench.peers``."""

from bench.peers.command import main

raise SystemExit(main())
