"""``python -m bench.scale``: how cost grows with the size of the data."""
