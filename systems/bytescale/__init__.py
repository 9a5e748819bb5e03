"""ByteScale: hybrid data parallelism over any number of ranks a sequence."""
