"""``python -m bench.soak``: hours of streaming with faults."""
