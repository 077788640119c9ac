"""``python -m bench.loader``: the loader beside decoding alone."""
