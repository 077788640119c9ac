"""Engines: each does the same jobs of a conversion, on processes that it starts or finds."""
