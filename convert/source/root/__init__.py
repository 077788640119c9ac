"""Converted roots as sources: ``root:PATH``, to encode, resize, choose and join them again without their source."""
