"""``pairstream fetch``: local copies of the shards and index of a mixture."""
