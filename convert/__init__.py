"""From RLDS episodes to shards of frame pairs: plain functions, no Beam in them."""
