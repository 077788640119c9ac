"""``python -m bench.convert``: conversion beside the bare codec work."""
