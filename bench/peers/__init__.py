"""``python -m bench.peers``: other loaders beside ours on the same pairs."""
