"""The index of a split: merged tables, derived columns, statistics."""
