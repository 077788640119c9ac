"""The loader that users iterate: batches in turn, their state, saving and statistics."""
