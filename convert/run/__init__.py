"""``python -m convert.run``: plan, start, report and finish a conversion."""
