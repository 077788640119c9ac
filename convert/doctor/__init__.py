"""``python -m convert.doctor``: look for mistakes in the data themselves."""
