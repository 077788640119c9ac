"""The files of a converted root: their names, and reading and writing records, manifests and index tables."""
