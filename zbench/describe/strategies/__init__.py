"""A training strategy put together of its groups (zbench.describe.strategy), the part of it that whole steps have, and
words for it."""
