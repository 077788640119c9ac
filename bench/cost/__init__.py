"""``python -m bench.cost``: what a conversion of the full datasets costs."""
