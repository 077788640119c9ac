"""Datasets that a function of the user reads."""
