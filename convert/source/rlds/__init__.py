"""TFDS datasets in RLDS form: metadata, TFRecord files, and the episodes in their records."""
