"""``python -m bench.merge``: time and memory of merging an index."""
