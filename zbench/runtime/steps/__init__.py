"""A step's templates as one process's instructions: what it computes, sends and receives, in the proven order."""
