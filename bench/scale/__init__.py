"""``python -m bench.scale``: cost of the loader, labels, index and pages on roots of any size."""
