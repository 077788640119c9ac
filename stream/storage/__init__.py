"""Local and remote files: atomic writes, object stores, and the writer of tables."""
