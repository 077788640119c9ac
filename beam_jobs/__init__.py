"""The Beam graph around the functions of `convert`, and the options of its runners."""
