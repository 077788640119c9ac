"""``python -m bench.gpu``: every way to a GPU, checked against the host, and measured."""
