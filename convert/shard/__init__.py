"""Pieces of a shard: frame pairs, encoded images, records, rows of the index."""
