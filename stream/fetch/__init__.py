"""``python -m stream.fetch``: copy what a mixture needs to this machine."""
