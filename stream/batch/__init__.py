"""From row numbers to the arrays of a batch: look up, read, decode, transform."""
