"""``python -m bench.formats``: file formats beside each other."""
