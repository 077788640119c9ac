"""``python -m bench.scale``: cost of the loader, labels, index, statistics and pages on roots of any size."""
