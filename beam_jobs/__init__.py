"""The Beam graph around the functions of ``convert``, and its runners."""
