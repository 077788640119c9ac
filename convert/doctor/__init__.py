"""``pairstream doctor``: look for mistakes in the data themselves."""
