"""``python -m bench.loader``: the loader compared with decoding only."""
