"""From RLDS episodes to shards of frame pairs: plain functions, no Beam in them."""

__version__ = "0.1.0"
