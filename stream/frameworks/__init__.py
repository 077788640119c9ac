"""Batches for Grain, PyTorch, Lightning and JAX."""
