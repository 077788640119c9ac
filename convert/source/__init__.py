"""Source datasets: their shards, features and episodes, in TFDS's RLDS form."""
