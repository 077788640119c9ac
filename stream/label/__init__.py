"""``pairstream label``: columns that are added to the steps of a converted dataset."""
