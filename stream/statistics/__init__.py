"""Statistics of actions and states, normalising by them, and the files of statistics of other trainers."""
