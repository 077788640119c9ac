"""The files of a converted root: names, records, manifest, tables and index."""
