"""The loader that users iterate: batches of any step, their state, saving and statistics."""
