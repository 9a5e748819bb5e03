"""What decides how much memory a step takes: chunks of tokens, and what waits in host memory."""
