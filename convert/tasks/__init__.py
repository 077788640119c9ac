"""The two units of work that Beam distributes: convert a shard, merge a split."""
