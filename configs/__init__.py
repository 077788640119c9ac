"""Datasets and mixtures: the YAML files of this package, read by `convert.registry`."""
