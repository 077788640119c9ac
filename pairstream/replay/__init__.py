"""``pairstream replay``: the batch of any step of a run, the origin of its rows, and a picture."""
