"""What happens to the pixels of a frame: another size, and augmentation."""
