"""``python -m bench.formats``: file formats compared, by the protocol of `bench.peers`."""
