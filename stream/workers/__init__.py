"""Worker processes, their protocol, and the ring of shared memory that holds their batches."""
