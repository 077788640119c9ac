"""``python -m stream.replay``: the batch of any step of a run, its origin and its picture."""
