"""LeRobot datasets, v3.0, v2.1 and v2.0: metadata, parquet and video files, and the episodes in them."""
