"""``python -m bench.layouts``: cost of layouts, codecs and stored depth."""
