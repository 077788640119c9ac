"""``pairstream sample``: generated small datasets with the true schemas."""
