"""Datasets of HDF5 and Zarr files, read as a layout in YAML tells; presets are in ``configs/layouts``."""
