"""Loaders to compare, a module each: how it stores the pairs and gives batches of them."""
