"""``pairstream export``: a slice of a converted root as a LeRobot dataset, to look at and to share."""
