"""``python -m bench.chaos``: faults brought about with real processes."""
