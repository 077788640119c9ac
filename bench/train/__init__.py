"""``python -m bench.train``: the share of a training step spent waiting for data."""
