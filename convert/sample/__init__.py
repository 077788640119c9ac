"""``python -m convert.sample``: generate small datasets with the true schemas."""
