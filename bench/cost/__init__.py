"""``python -m bench.cost``: hours and dollars of converting datasets."""
