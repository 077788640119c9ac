"""Records of roots that are read in place: sparse local copies of shards, filled by ranged reads."""
