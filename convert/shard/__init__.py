"""What a shard is made of: frame pairs, encoded images, records, rows of the index."""
