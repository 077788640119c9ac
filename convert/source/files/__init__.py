"""Datasets that are files of episodes: what all such kinds share."""
