"""``python -m bench.peers``: other loaders compared with ours on the same pairs."""
