"""``python -m bench.chaos``: faults caused with real processes."""
