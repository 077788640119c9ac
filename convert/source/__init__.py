"""Source datasets: their shards, features and episodes. Each format is a folder that implements ``protocol``."""
