"""``python -m bench.corruption``: every region of every file damaged."""
