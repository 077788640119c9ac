"""Pixels of the frames of a batch: resizing and augmentation."""
