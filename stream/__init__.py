"""Read converted datasets: deterministic, random-access mixtures of frame pairs."""
