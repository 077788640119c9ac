"""``pairstream view``: one episode in Rerun; and the tracks of an episode, which other packages show too."""
