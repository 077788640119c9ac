"""``python -m bench.convert``: conversion compared with the bare codec work."""
