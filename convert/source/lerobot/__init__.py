"""LeRobot datasets, v3.0 and v2.1: metadata, parquet and video files, and the episodes in them."""
