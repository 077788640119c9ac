"""Processes and threads that make batches ahead of time, and the ring of memory they write to."""
