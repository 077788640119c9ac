"""``python -m convert.sample``: generated small datasets with the true schemas."""
