"""``pairstream browse``: a local web application to look at converted data."""
