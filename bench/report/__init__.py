"""``python -m bench.report``: all studies and the page of their results."""
