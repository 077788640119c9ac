"""``pairstream info``: what a converted root holds, and the episodes that filters leave."""
