"""Row numbers turned into the arrays of a batch: look up, read, decode, transform."""
